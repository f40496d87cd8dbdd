"""Faults of engines, hosts and networks behind pools."""
