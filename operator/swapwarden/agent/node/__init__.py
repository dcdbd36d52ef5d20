"""Examines the node: facts, diagnostics, usage and preflight."""
