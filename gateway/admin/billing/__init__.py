"""Admin API routes of billing."""
