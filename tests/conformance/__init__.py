"""Suites of other projects' clients, run against the server."""
