"""Endpoint: /tokenize and /detokenize."""
