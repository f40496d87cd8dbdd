"""Queries of feedback: votes as they were cast, and the votes that are in the sums of experiments."""
