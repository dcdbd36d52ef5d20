"""What the API server reports of objects that no informer alone follows."""
