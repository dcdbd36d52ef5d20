"""kubectl swap: a plugin of kubectl that shows who gets swap, who uses it, and why."""
