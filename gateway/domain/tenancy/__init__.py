"""Pure parts of who calls and what they may do."""
