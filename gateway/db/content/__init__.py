"""SQL of the encrypted content that is kept for tenants, and of the ids of the keys that encrypt it."""
