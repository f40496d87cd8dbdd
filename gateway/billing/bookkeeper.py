"""Keeps the books in the background: adds up the ledger's new rows, makes its next partitions, ends expired credits.

Every gateway has one; of all of them one works at a time, and any may take over. Knows no SQL.
"""

from __future__ import annotations

import asyncio

import structlog

from gateway.db.billing.credits import lapse_due
from gateway.db.due_work import RARELY_S
from gateway.db.ledger.rollups import catch_up, ensure_days
from gateway.db.pool import Database
from gateway.support.worker import Worker

log = structlog.get_logger(__name__)

INTERVAL_S = 0.5
"""Seconds between two rounds: reports follow the ledger by this and the time of a transaction."""

DAYS_INTERVAL_S = 3600.0


class Bookkeeper(Worker):
    """Keeps the books between `start` and `stop`. wake: set when there is work; None: works each INTERVAL_S."""

    def __init__(self, database: Database, wake: asyncio.Event | None = None) -> None:
        super().__init__(self.work, INTERVAL_S if wake is None else RARELY_S, name="books", wake=wake)
        self._database = database
        self._days_ensured_s = float("-inf")

    async def work(self) -> None:
        """Roll up all new usage, end the credits that have lapsed, and make the ledger's partitions of the coming days.

        Raises one of `gateway.db.pool.FAILURES`: when the database fails.
        """
        await catch_up(self._database)
        async with self._database.acquire() as conn:
            while await lapse_due(conn):
                pass
            now_s = asyncio.get_running_loop().time()
            if now_s - self._days_ensured_s >= DAYS_INTERVAL_S:
                await ensure_days(conn)
                self._days_ensured_s = now_s
