"""What the node is: facts, diagnostics, usage and preflight."""
