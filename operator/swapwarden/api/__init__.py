"""The API between users and the parts of Swapwarden: names, the two kinds, and their CRDs."""
