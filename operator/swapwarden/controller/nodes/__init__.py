"""Nodes: each gets its state, labels, taints and extended resource; silent agents are counted."""
