"""Tools of the documentation."""
