"""Pure parts of experiments."""
