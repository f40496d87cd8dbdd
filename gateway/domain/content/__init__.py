"""Pure parts of kept content."""
