"""SQL of kept content."""
