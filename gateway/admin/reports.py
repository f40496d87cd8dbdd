"""The share of a gateway's processor and of its database's that reports take.

A report sums or searches usage, which may take a second; requests of tenants use the same processors meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from gateway.db.pool import Database
from gateway.support.pace import Pace

if TYPE_CHECKING:
    from gateway.db.pool import Connection

SHARE = 0.1
"""Seconds of reports in a second that one key or person may read from one gateway, once the burst is used up."""

BURST_S = 10.0
"""Seconds of reports that one key or person may read at once: some hundred pages of the dashboard."""

WAIT_S = 10.0
"""The longest wait for the turn of a report."""


class Reports:
    """The reports of one gateway: one at a time, and of each key or person for a share of the time.

    It knows nothing of what a report reads.
    """

    def __init__(
        self,
        database: Database,
        share: float = SHARE,
        burst_s: float = BURST_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._clock = clock
        self._turn = asyncio.Lock()
        self._pace = Pace(share, burst_s, what="reports", whose="This key or user", clock=clock)

    @asynccontextmanager
    async def connection(self, actor_id: str) -> AsyncIterator[Connection]:
        """Borrow a connection for the queries of a report.

        Raises LimitReached for a key or person who has read reports for too long, and TimeoutError when the turn or
        a connection does not come soon.
        """
        self._pace.take(actor_id, 0)
        async with asyncio.timeout(WAIT_S):
            await self._turn.acquire()
        try:
            self._pace.take(actor_id, 0)
            async with self._database.acquire() as connection:
                begun_s = self._clock()
                try:
                    yield connection
                finally:
                    self._pace.charge(actor_id, self._clock() - begun_s)
        finally:
            self._turn.release()
