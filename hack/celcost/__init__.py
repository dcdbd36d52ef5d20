"""The cost of the CRDs' rules."""
