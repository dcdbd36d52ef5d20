"""What the CRDs' rules cost."""
