"""SQL of billing."""
