"""What was there before the agent, what the agent wrote, and when it was last alive."""
