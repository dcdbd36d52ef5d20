"""Leader election: of several instances at most one leads, the holder of a Lease."""
