"""Print tables, JSON and YAML, and sizes."""
