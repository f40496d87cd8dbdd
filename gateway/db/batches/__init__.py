"""SQL of batches and their lines."""
