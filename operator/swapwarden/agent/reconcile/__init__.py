"""Makes files hold what is desired, one key at a time."""
