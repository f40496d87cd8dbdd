"""Pure parts of batches."""
