"""Pools over HTTP: what operators say shall run and who may use it, the hosts and replicas there are, and the bases
that a project may use. Changes are rows alone: agents make them true.
"""
