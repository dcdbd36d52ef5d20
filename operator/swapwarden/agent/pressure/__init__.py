"""Memory pressure of the node: its signals, and the report of its pods while one is on."""
