"""Who wrote over the agent's values, for how long, and at what cost."""
