"""Events for the owners of objects: decided here, purely, and posted by the caller."""
