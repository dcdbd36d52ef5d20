"""Metrics, logs and health endpoints."""
