"""Admin API routes of adapters."""
