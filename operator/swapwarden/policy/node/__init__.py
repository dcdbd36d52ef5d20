"""Settings of a node: labels, taint, extended resource, kernel settings."""
