"""Admin API routes of limits."""
