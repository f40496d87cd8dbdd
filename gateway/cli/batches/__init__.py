"""Commands about files and batches, with a key of a project."""
