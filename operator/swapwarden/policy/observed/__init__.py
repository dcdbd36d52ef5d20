"""Pods, Nodes and Namespaces as policy reads them: rows with the fields that count."""
