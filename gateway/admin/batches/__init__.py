"""Admin API routes of files and batches."""
