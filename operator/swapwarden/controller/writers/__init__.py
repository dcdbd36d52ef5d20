"""What the controller writes: one module for each collection, and nothing else in the controller writes to it."""
