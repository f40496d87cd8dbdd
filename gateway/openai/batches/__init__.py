"""Endpoint: batches, and the answering of their lines."""
