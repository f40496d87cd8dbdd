"""Tests of the pure parts of batches."""
