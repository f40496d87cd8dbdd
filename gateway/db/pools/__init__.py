"""Rows of pools, their revisions and replicas, and the hosts that run them."""
