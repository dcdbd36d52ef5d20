"""What a node gets: labels, taint, extended resource, kernel settings."""
