"""Queries about the routing policies of projects."""
