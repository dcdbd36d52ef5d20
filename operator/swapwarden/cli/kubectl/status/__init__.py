"""`kubectl swap nodes`: the swap of each node and whether its agent enforces the plan."""
