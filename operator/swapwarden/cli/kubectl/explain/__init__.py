"""`kubectl swap explain`: why a pod has its swap limit."""
