"""The webhook's certificate: made, renewed before it ends, and made known to the API server."""
