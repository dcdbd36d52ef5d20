"""`kubectl swap top`: swap in use by pod, node and namespace."""
