"""Faults of servers of other makers behind pools."""
