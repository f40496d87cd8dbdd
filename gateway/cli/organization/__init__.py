"""Commands about organizations, projects, people and keys."""
