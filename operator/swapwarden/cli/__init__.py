"""The command line: swapwarden plan."""
