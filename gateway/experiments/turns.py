"""The choice of the process that keeps the books of experiments: a worker, or gateways that stand in for it.

Books take processor time in bursts, which requests of the same process would wait for. So the worker whose turn it is
keeps them; without one, or if it is behind, gateways do. Turns decide who works, not what is right: units and sums have
a lock of their own (`gateway.db.experiments.events`).
"""

from __future__ import annotations

from typing import Protocol

from gateway.db.experiments.events import counting_lag_s
from gateway.db.pool import Database
from gateway.db.turns import BOOKS, is_free
from gateway.experiments.books import GRACE

STAND_IN_AFTER_S = 5.0
"""Seconds by which sums may be behind before gateways stand in for the worker whose turn it is."""


class HasTurn(Protocol):
    """The turn to keep the sums, as one process sees it; `gateway.db.turns.Turn` is the turn of a worker."""

    async def is_mine(self) -> bool:
        """Tell whether this process is to work now.

        Raises one of `gateway.db.pool.FAILURES`: when the database fails.
        """

    def release(self) -> None:
        """Give the turn up, if this process has it."""


class StandIn:
    """The turn of a gateway, which works when no worker has the turn, or when that worker is behind."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def is_mine(self) -> bool:
        """Tell whether this gateway keeps the sums of experiments, since no worker does.

        Raises one of `gateway.db.pool.FAILURES`: when the database fails.
        """
        async with self._database.acquire() as conn:
            return await is_free(conn, BOOKS) or await counting_lag_s(conn, GRACE) > STAND_IN_AFTER_S

    def release(self) -> None:
        """Do nothing: a gateway takes no turn from anybody."""
