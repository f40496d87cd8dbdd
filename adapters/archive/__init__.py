"""An adapter's two files out of a tar or zip archive that a stranger made. Knows nothing of what is in the files."""
