"""Alerts and the dashboard, and the generators of their files."""
