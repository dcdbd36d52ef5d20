"""The admission webhook for pods."""
