"""Endpoint: chat completions."""
