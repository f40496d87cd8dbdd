"""Endpoint: documents ranked for a query."""
