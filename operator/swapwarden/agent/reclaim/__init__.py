"""Moves idle memory of pods to swap, in a thread of its own."""
