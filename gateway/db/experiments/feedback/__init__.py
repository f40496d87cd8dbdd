"""Queries of feedback: votes as they are, and the votes that the sums of experiments have."""
