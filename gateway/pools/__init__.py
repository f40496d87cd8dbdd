"""Pools of one gateway process: what the rows say that is served, as backends that are connected to its replicas."""
