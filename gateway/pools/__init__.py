"""Pools of one gateway process: for each pool that the database's rows describe, connections to its replicas."""
