"""`kubectl swap check`: problems of a cluster or of manifests, each with a remedy."""
