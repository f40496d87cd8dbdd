"""Limits that hold: what a tenant may use, reserved before it is used, over any number of gateways.

A request reserves the worst case and settles what it used. One truth, in PostgreSQL: available = max - settled ledger -
leases. A lease is what one gateway holds: what its running requests reserved, and a slice ahead, from which it decides
without I/O. No wall clock is read here: instants are PostgreSQL's, carried on by monotonic differences.
"""
