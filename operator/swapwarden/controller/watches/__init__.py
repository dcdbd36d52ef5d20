"""Watches of objects for which an informer alone is not enough."""
