"""Read objects from files, checked as the API server would check them."""
