"""Pools over HTTP: pools and who may use them, hosts, replicas, and the bases of a project.

A change only writes rows; agents start and stop engines by them.
"""
