"""Endpoint: what several endpoints share."""
