"""What users and the parts of Swapwarden write to each other: names, the two kinds, and their CRDs."""
