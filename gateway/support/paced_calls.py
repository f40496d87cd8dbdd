"""Functions called one by one with rests, so that an event loop that gets much to do at once stays free for others."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

REST_PER_WORK = 2.0
"""Seconds of rest after each call for each second in which the event loop did what the call had made ready."""

MAX_REST_S = 0.05
"""The longest rest: the time after a call may be that of other work, which held the loop."""


class PacedCalls:
    """Calls functions in order, and takes a third of the event loop's time for them, or less.

    A function that comes when none waits and no rest is due is called at once.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_calling = False
        self._rests_until_s = 0.0

    @property
    def num_waiting(self) -> int:
        """The number of functions that are still to be called."""
        return len(self._waiting)

    def call(self, function: Callable[[], None]) -> None:
        """Call a function after all earlier ones, and after the rest that follows the last of them."""
        self._waiting.append(function)
        if not self._is_calling:
            self._is_calling = True
            loop = asyncio.get_running_loop()
            loop.call_at(max(self._rests_until_s, loop.time()), self._call_next)

    async def turn(self) -> None:
        """Wait until it is the caller's turn; what the caller does until it is first suspended counts as work."""
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
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        self._rests_until_s = now_s + min(REST_PER_WORK * (now_s - began_s), MAX_REST_S)
        if self._waiting:
            loop.call_at(self._rests_until_s, self._call_next)
        else:
            self._is_calling = False
