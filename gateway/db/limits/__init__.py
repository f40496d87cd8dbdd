"""SQL of limits."""
