"""Texts ranked for a query, and as vectors, with a key of a project."""
