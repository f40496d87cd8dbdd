"""`lorikeet serve`: everything on one machine (database, engine, gateways), started in order, supervised, drained."""

from __future__ import annotations

from gateway.serve.run import serve

__all__ = ["serve"]
