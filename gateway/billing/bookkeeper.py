"""Keeps the books in the background: sums up the ledger's new rows, makes its next days, lets credits lapse.

Every gateway has one; of all of them one works at a time, and any may take over. Knows no SQL.
"""

from __future__ import annotations

import asyncio
import contextlib

import structlog

from gateway.db.billing.credits import lapse_due
from gateway.db.due_work import RARELY_S
from gateway.db.ledger.rollups import catch_up, ensure_days
from gateway.db.pool import FAILURES, Database

log = structlog.get_logger(__name__)

INTERVAL_S = 0.5
"""Seconds between two rounds: reports follow the ledger by this and the time of a transaction."""

DAYS_INTERVAL_S = 3600.0


class Bookkeeper:
    """Keeps the books between `start` and `stop`. wake: set when there is work; None: looks each INTERVAL_S."""

    def __init__(self, database: Database, wake: asyncio.Event | None = None) -> None:
        self._database = database
        self._wake = wake or asyncio.Event()
        self._interval_s = INTERVAL_S if wake is None else RARELY_S
        self._task: asyncio.Task[None] | None = None
        self._days_ensured_s = float("-inf")

    def start(self) -> None:
        """Begin to work."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Cancel the work, and wait until the work has ended."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

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

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self.work()
            except FAILURES as error:
                log.warning("books_kept_later", error=repr(error))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._wake.wait()
