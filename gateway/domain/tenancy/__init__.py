"""Pure parts of tenancy: callers, their keys, roles and permissions."""
