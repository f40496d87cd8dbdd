"""Exports of one experiment: exposures, outcomes and feedback as rows, and the analysis as sums.

From the sums `recompute`, a script for anybody, computes every published number anew.
"""
