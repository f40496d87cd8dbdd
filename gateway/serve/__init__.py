"""`lorikeet serve`: everything on one machine, started in order, supervised, drained.

The supervisor holds a lock on the data folder, restarts processes that end with growing pauses, and stops them in
order: gateways drain, the worker ends, the agent stops its engines, then the database. Children run in sessions of
their own and die with the supervisor; engines, which are the agent's children, live on then and are taken over by the
next start.
"""

from __future__ import annotations

from gateway.serve.run import serve

__all__ = ["serve"]
