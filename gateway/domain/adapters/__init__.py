"""Pure parts of adapters."""
