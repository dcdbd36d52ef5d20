"""How much swap a pod and its containers get."""
