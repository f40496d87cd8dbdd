"""Who may do what: key format, principals, authentication."""
