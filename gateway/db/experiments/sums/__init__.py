"""Sums over units by epoch and arm, of each day and of all days together.

    total    changes of many units, added up in memory
    adding   the statements that add such changes to the tables
    reading  sums for results and health
    whole    everything that is in the tables of an experiment, to compare it with a recount

Rows of all days together are what the days' rows add up to. Results read these alone: they take no longer after a
hundred days than after one.
"""
