"""Swapwarden's parts as processes of their own, with its manifests."""
