"""Faults of machines, networks, databases and clients, each brought upon an installation under load, and measured."""
