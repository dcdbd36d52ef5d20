"""Commands that use all of the testbed: tiers of tests, the choice for e2e, demos."""
