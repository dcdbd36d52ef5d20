"""All nodes with their profiles: their inventory, the views of each, and the progress of rollouts."""
