"""Serves the dashboard's static files. Knows nothing about what they do: they call the admin API as anybody may."""

from gateway.dashboard.routes import dashboard

__all__ = ["dashboard"]
