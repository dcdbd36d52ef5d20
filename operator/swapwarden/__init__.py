"""Swapwarden: per-pod swap policy for Kubernetes, enforced on every node and explained."""

__version__ = "0.1.0"
