"""Queries of experiments: definitions, keys, exposures, units and sums."""
