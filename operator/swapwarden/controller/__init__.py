"""The controller: watches in, plans, writes out."""
