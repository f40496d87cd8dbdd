"""Endpoint: stored chat completions."""
