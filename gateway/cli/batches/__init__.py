"""Files and batches, with a key of a project."""
