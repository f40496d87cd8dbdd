"""Exports of one experiment: exposures, outcomes and feedback as rows, and the analysis as sums, from which
`recompute`, a script for anybody, computes every published number anew."""
