"""Pure decisions: no I/O, no clock, no client. Rows and profiles in, numbers and reasons out."""
