"""Commands that rank texts for a query, or turn them into vectors, with a key of a project."""
