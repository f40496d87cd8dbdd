"""Endpoint: batches, and how a line of one is answered."""
