"""Pools of one gateway process: the served pools by their rows, as backends that are connected to their replicas."""
