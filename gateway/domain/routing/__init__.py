"""Pure parts of model strings."""
