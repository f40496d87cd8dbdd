"""Functions called one by one with rests, so that an event loop that gets much to do at once stays free for others."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

REST_PER_WORK = 4.0
"""Seconds of rest after each call for each second in which the event loop did what the call had made ready."""

MAX_REST_S = 0.05
"""The longest rest: the time after a call may be that of other work, which held the loop."""


class PacedCalls:
    """Calls functions in order, and takes about a fifth of the event loop's time for those that wait, or less.

    A function that comes when none waits and no rest is due is called at once.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_calling = False

    @property
    def num_waiting(self) -> int:
        """The number of functions that are still to be called."""
        return len(self._waiting)

    def call(self, function: Callable[[], None]) -> None:
        """Call a function after all earlier ones, once the loop has rested from them."""
        self._waiting.append(function)
        if not self._is_calling:
            self._is_calling = True
            asyncio.get_running_loop().call_soon(self._call_next)

    async def turn(self) -> None:
        """Wait until it is the caller's turn; what the caller does until it waits again counts as the call's work."""
        came = asyncio.get_running_loop().create_future()
        self.call(lambda: None if came.done() else came.set_result(None))
        await came

    def _call_next(self) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        try:
            self._waiting.popleft()()
        finally:
            loop.call_soon(self._rest, began_s)  # after all that the call made ready

    def _rest(self, began_s: float) -> None:
        if not self._waiting:
            self._is_calling = False
            return
        loop = asyncio.get_running_loop()
        loop.call_later(min(REST_PER_WORK * (loop.time() - began_s), MAX_REST_S), self._call_next)
