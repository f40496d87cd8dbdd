"""The format of the keys that encrypt the content that gateways keep for tenants. No I/O."""
