"""What policy reads of Pods, Nodes and Namespaces: rows with what counts."""
