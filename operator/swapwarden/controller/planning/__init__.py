"""What follows for each node from what is known: pure, from the inventory to decisions."""
