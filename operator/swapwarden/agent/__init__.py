"""The node agent: makes the kernel hold what the node's state says, and reports where it does not."""
