"""Builds the status and metrics from records, and writes the status."""
