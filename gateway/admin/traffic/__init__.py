"""Admin API routes of traffic."""
