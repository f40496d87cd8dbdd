"""Tests and intervals that hold at every look, and families of them. Knows nothing of arms, units and experiments."""
