"""Alerts and the dashboard, and what is made from them."""
