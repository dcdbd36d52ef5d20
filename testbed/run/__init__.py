"""What runs all of that for somebody: tiers of tests, the choice for e2e, demos."""
