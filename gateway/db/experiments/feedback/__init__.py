"""Queries of feedback: votes as they are, and which of them the sums of experiments have."""
