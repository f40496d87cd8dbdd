"""Pools over HTTP: pools and who may use them, hosts, replicas, and the bases of a project.

Changes are rows alone: agents make them true.
"""
