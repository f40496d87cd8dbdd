"""SQL of organizations, projects, people and keys."""
