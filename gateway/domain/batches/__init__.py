"""Decisions about batches, without I/O: their endpoints, the facts of a line, and the projects' turns at a pool."""
