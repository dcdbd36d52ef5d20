"""Nodes under memory pressure: what their agents report, and which of their pods leave, or would."""
