"""The window of one engine: a bound on the requests in flight that the engine sets, and a fair queue before it."""

from __future__ import annotations

import asyncio
from collections import deque


class Window:
    """A semaphore whose bound may change while it is used. First come, first served."""

    def __init__(self) -> None:
        self.limit = 0
        self.num_taken = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._idle = asyncio.Event()
        self._idle.set()

    def set_limit(self, limit: int) -> None:
        """Set the number of places; requests that wait take new ones at once."""
        self.limit = limit
        self._grant()

    async def take(self, wait_s: float) -> None:
        """Take one place in the window, waiting up to wait_s for a place.

        Raises TimeoutError: when no place is free in time.
        """
        if self.num_taken < self.limit and not self._waiters:
            self._change_taken(1)
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(wait_s):
                await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled():  # granted in the very moment that we gave up
                self.give()
            raise

    def give(self) -> None:
        """Give one place back."""
        self._change_taken(-1)
        self._grant()

    async def wait_idle(self) -> None:
        """Wait until no place is taken."""
        await self._idle.wait()

    def _grant(self) -> None:
        while self._waiters and self.num_taken < self.limit:
            waiter = self._waiters.popleft()
            if not waiter.done():
                self._change_taken(1)
                waiter.set_result(None)

    def _change_taken(self, change: int) -> None:
        self.num_taken += change
        if self.num_taken == 0:
            self._idle.set()
        else:
            self._idle.clear()
