"""Memory pressure: when a node is under it, and which of its pods exceed what they asked for."""
