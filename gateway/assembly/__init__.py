"""Builds one gateway process from its settings: services, the HTTP application, start and stop."""
