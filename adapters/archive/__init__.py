"""An adapter's two files out of a tar or zip archive that a stranger made. Knows nothing of the files' contents."""
