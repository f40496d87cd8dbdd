"""Work in the background that only `stop` ends: the errors of a step are logged, and the next step comes all the same.

Knows nothing of the steps' work.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

import structlog

from adapters.errors import StoreFailure
from gateway.db.pool import FAILURES

AWAY: tuple[type[Exception], ...] = (*FAILURES, StoreFailure)
"""Errors that are expected to pass: a database, a disk or a bucket does not answer."""

log = structlog.get_logger(__name__)


class Worker:
    """A background loop that takes a step, then rests for an interval or until woken, between `start` and `stop`.

    A service that is one such loop inherits from Worker; one that has several loops holds several workers.
    """

    def __init__(
        self,
        step: Callable[[], Awaitable[object]],
        interval_s: float | Callable[[], float],
        *,
        name: str,
        wake: asyncio.Event | None = None,
        rests_first: bool = False,
        by_starts: bool = False,
        retry_s: tuple[float, float] | None = None,
    ) -> None:
        """Prepare to work.

        interval_s: the seconds of a rest, or a function that returns them after each step. Infinity: until woken.
        name: the name of the work in the log.
        wake: ends a rest when it is set.
        rests_first: True: the first step comes after a rest as well.
        by_starts: True: interval_s counts from the start of a step to the start of the next one. A rest is a fifth of
        interval_s at least, however long the step took.
        retry_s: the seconds of the rest after the first failed step, doubled by each further failure, and the most of
        them; None: rests after failures are as long as others.
        """
        self._take_step = step
        self._rest_s = interval_s
        self._work_name = name
        self._wake = wake or asyncio.Event()
        self._rests_first = rests_first
        self._by_starts = by_starts
        self._retry_rest_s = retry_s
        self._num_failures = 0
        """Steps that failed one after the other, until now."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to work."""
        self._task = asyncio.create_task(self._run())

    def cancel(self) -> None:
        """Cancel the loop without waiting. `stop` waits for its end."""
        if self._task is not None:
            self._task.cancel()

    async def stop(self) -> None:
        """Cancel the loop, and wait until it has ended."""
        self.cancel()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        clock_s = asyncio.get_running_loop().time
        if self._rests_first:
            await self._rest_until_due(0.0)
        while True:
            self._wake.clear()
            began_s = clock_s()
            try:
                await self._take_step()
                self._num_failures = 0
            except AWAY as error:
                self._num_failures += 1
                log.warning("background_work_delayed", work=self._work_name, error=repr(error))
            except Exception:
                self._num_failures += 1
                log.exception("background_work_failed", work=self._work_name)
            await self._rest_until_due(clock_s() - began_s)

    async def _rest_until_due(self, took_s: float) -> None:
        """Wait until the next step is due, or the worker is woken. took_s: the seconds that the last step took."""
        try:
            async with asyncio.timeout(self._rest_after(took_s)):
                await self._wake.wait()
        except TimeoutError:
            return

    def _rest_after(self, took_s: float) -> float | None:
        """Return the seconds of the rest after a step; None: until woken."""
        if self._num_failures and self._retry_rest_s is not None:
            first_s, most_s = self._retry_rest_s
            return min(most_s, first_s * 2.0 ** min(self._num_failures - 1, 32))
        interval_s = self._rest_s() if callable(self._rest_s) else self._rest_s
        if self._by_starts:
            interval_s = max(interval_s / 5, interval_s - took_s)
        return interval_s if math.isfinite(interval_s) else None


async def stop_all(*workers: Worker) -> None:
    """Cancel the work of all workers, and wait until all of it has ended."""
    for worker in workers:
        worker.cancel()
    for worker in workers:
        await worker.stop()
