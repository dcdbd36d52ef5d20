"""Decisions about each node, made purely from the inventory."""
