"""Moving idle memory of pods to swap."""
