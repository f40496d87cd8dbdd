"""Decisions about callers, without I/O: keys, roles and permissions, addresses, passwords and second factors."""
