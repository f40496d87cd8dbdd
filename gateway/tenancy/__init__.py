"""Authentication of keys and logins: key format, principals, passwords."""
