"""Endpoint: conversations, and their items."""
