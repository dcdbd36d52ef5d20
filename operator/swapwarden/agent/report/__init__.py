"""Builds the status from what is recorded, and writes it."""
