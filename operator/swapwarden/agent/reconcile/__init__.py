"""Brings files to their desired values, one key at a time."""
