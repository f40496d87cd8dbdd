"""Decisions about adapters, without I/O: which sources are allowed, and the defaults that owners set for requests."""
