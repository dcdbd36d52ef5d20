"""Records the values from before the agent, the values that it wrote, and when it was last alive."""
