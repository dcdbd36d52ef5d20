"""A lean client for the Kubernetes API: REST, watch, informer, lease."""
