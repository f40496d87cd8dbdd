"""Pure parts of limits."""
