"""Admin API routes of organizations, projects, people and keys."""
