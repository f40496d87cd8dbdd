"""An event loop whose clock is simulated: when there is nothing to do, the next timer is due at once.

Hours take moments, and no load of the machine changes any time that is measured by the loop's clock.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """A selector that never waits: the simulated clock advances by the time that it would wait."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if timeout is None and not ready:
            raise RuntimeError("everything waits, and no timer is set")
        if timeout is not None and timeout > 0 and not ready:
            self.now_s += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock begins at 0 s, and in which events from outside take no time."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    """Run an awaitable in simulated time, and return its result."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
