"""Unpacks an adapter's two files from a tar or zip archive that a stranger made.

Knows nothing of the files' contents.
"""
