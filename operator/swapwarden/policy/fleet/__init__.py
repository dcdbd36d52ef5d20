"""All nodes with their profiles: what is known of them, and what follows for each of them and for rollouts."""
