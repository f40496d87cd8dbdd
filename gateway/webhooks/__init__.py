"""Deliver queued webhook messages."""
