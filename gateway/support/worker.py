"""Work in the background that only `stop` ends: the errors of a step are logged, and the next step comes all the same.

Knows nothing of the steps' work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from adapters.errors import StoreFailure
from gateway.db.pool import FAILURES

AWAY: tuple[type[Exception], ...] = (*FAILURES, StoreFailure)
"""Errors that pass by themselves: a database, a disk or a bucket does not answer."""

log = structlog.get_logger(__name__)


class Background:
    """Works in the background between `start` and `stop`."""

    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to work."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Cancel the work, and wait until the work has ended."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        """Work until canceled."""
        raise NotImplementedError


async def forever(
    step: Callable[[], Awaitable[object]],
    interval_s: float | Callable[[], float],
    *,
    name: str,
    wake: asyncio.Event | None = None,
    by_starts: bool = False,
) -> None:
    """Take a step, wait for interval_s or until `wake` is set, and so on until canceled.

    interval_s: the seconds, or a function that returns them after each step.
    name: the name of the work in the log.
    by_starts: True: steps begin interval_s apart where they take less, with a fifth of it between them at least.
    """
    wake = wake or asyncio.Event()
    clock_s = asyncio.get_running_loop().time
    while True:
        wake.clear()
        began_s = clock_s()
        try:
            await step()
        except AWAY as error:
            log.warning("background_work_delayed", work=name, error=repr(error))
        except Exception:
            log.exception("background_work_failed", work=name)
        try:
            took_s = clock_s() - began_s if by_starts else 0.0
            most_s = interval_s() if callable(interval_s) else interval_s
            async with asyncio.timeout(max(most_s / 5, most_s - took_s)):
                await wake.wait()
        except TimeoutError:
            continue
