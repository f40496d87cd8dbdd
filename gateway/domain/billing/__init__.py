"""Pure parts of billing."""
