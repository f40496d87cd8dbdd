"""Endpoint: embeddings."""
