"""Read a cluster: the session with its API server, its agents, and what the controller would plan."""
