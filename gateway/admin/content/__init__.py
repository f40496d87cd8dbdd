"""Admin API routes of kept content."""
