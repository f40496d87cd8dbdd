"""`lorikeet serve`: everything on one machine (database, engine, gateways), started in order, supervised, drained.

The supervisor holds a lock on the data folder, restarts processes that end with growing pauses, and stops them in
order: gateways drain, then the engine, then the database. Children run in sessions of their own and die with the
supervisor.
"""

from __future__ import annotations

from gateway.serve.run import serve

__all__ = ["serve"]
