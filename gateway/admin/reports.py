"""Bounds the processor time that reports take of a gateway and of its database.

A report sums or searches usage, which may take a second; requests of tenants use the same processors meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from gateway.db.pool import Database
from gateway.domain.errors import LimitReached, Overloaded
from gateway.support.pace import Pace

if TYPE_CHECKING:
    from gateway.db.pool import Connection

SHARE = 0.1
"""The share of time for which one key or person may read reports from one gateway, once the burst is used up."""

BURST_S = 10.0
"""Seconds of reports that one key or person may read at once: some hundred pages of the dashboard."""

MAX_AT_ONCE = 2
"""The most reports that a gateway reads at once, of all keys and persons: a slow one does not hold up all others."""

WAIT_S = 10.0
"""The most seconds that a report waits for its turn."""


class Reports:
    """Lends connections to the reports of one gateway, so that reports leave time for everything else.

    A key or person reads one report at a time and, after a burst, during at most a share of the time. The gateway reads
    at most `MAX_AT_ONCE` reports at a time. It knows nothing of what a report reads.
    """

    def __init__(
        self,
        database: Database,
        share: float = SHARE,
        burst_s: float = BURST_S,
        clock: Callable[[], float] = time.monotonic,
        wait_s: float = WAIT_S,
    ) -> None:
        self._wait_s = wait_s
        self._database = database
        self._clock = clock
        self._turns = asyncio.Semaphore(MAX_AT_ONCE)
        self._turn_of: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._pace = Pace(share, burst_s, what="reports", whose="This key or user", clock=clock)

    @asynccontextmanager
    async def connection(self, actor_id: str) -> AsyncIterator[Connection]:
        """Borrow a connection for the queries of a report.

        Raises LimitReached: when the key or person has read reports for too long, or asks for so many at once that this
        one's turn among them does not come within `WAIT_S`.
        Raises Overloaded: when reports of others take so long.
        Raises TimeoutError: when no connection is free in time.
        """
        self._pace.take(actor_id, 0)
        own = self._turn_of.setdefault(actor_id, asyncio.Lock())
        async with AsyncExitStack() as stack:
            has_own = False
            try:
                async with asyncio.timeout(self._wait_s):
                    await stack.enter_async_context(own)
                    has_own = True
                    await stack.enter_async_context(self._turns)
            except TimeoutError:
                if not has_own:
                    raise LimitReached(
                        "This key or user reads too many reports at once. Ask for one after the other.",
                        retry_after_s=self._wait_s,
                    ) from None
                raise Overloaded("Other reports are being read. Ask again in a moment.", retry_after_s=1.0) from None
            self._pace.take(actor_id, 0)
            connection = await stack.enter_async_context(self._database.acquire())
            begun_s = self._clock()
            try:
                yield connection
            finally:
                self._pace.charge(actor_id, self._clock() - begun_s)
