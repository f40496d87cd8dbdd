"""Endpoint: text completions."""
