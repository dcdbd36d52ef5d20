"""The swap limits of a pod and its containers."""
