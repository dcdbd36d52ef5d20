"""Leader election: at most one of several instances leads, the holder of a Lease."""
