"""Writes content in the background; a reply waits for its write only a moment.

If the database does not answer, writes are tried again, bounded in number, bytes and time. A write that is given up is
counted and logged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog
from prometheus_client import Counter

from gateway.db.pool import FAILURES

log = structlog.get_logger(__name__)

MAX_WRITES = 4096
MAX_BYTES = 256 << 20
WAIT_S = 1.0
"""The most seconds by which a write holds up a reply."""

AT_ONCE_S = 2.0
"""The most seconds that a reply waits for a write whose result the reply states."""

TRY_S = 5.0
PAUSE_S = 0.25
GIVE_UP_S = 60.0
STOP_S = 5.0

Work = Callable[[], Awaitable[object]]


class Writes:
    """The writes of content. A gateway process has one.

    lost: counts the writes that were given up, by kind. max_bytes: the bound on all writes that wait.
    """

    def __init__(self, lost: Counter, *, max_bytes: int = MAX_BYTES) -> None:
        self._lost = lost
        self._max_bytes = max_bytes
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_bytes = 0

    def start(self) -> None:
        """Do nothing: tasks start when something is to be written."""

    async def stop(self) -> None:
        """Wait a moment for the writes under way; those that remain are lost."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def begin(self, kind: str, num_bytes: int, work: Work, *, small: Work | None = None) -> asyncio.Task[None]:
        """Begin work that writes content, and return its task, which ends once the work is done or given up.

        The work may be begun anew. kind: the kind of content, for the counter and the log. num_bytes: the bytes of
        memory that the work holds until it ends. small: the work that is done instead where there is no room for these
        bytes.
        """
        task = asyncio.create_task(self._write(kind, num_bytes, work, small))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def wait_a_moment(self, task: asyncio.Task[None]) -> None:
        """Wait until the task is done or given up, for WAIT_S at most."""
        await asyncio.wait([task], timeout=WAIT_S)

    async def write_at_once(self, kind: str, work: Callable[[], Awaitable[bool]]) -> bool:
        """Do work whose result a reply states, for AT_ONCE_S at most; return the result, or False where it failed."""
        error: BaseException = TimeoutError()
        try:
            async with asyncio.timeout(AT_ONCE_S):
                while True:
                    try:
                        return await work()
                    except FAILURES as failure:
                        error = failure
                    await asyncio.sleep(PAUSE_S)
        except TimeoutError:
            self.count_lost(kind, repr(error))
        except Exception as failure:  # it would come again
            self.count_lost(kind, repr(failure))
        return False

    async def _write(self, kind: str, num_bytes: int, work: Work, small: Work | None) -> None:
        if len(self._tasks) > MAX_WRITES or self._num_bytes + num_bytes > self._max_bytes:
            self.count_lost(kind, "too much waits to be written")
            if small is None or len(self._tasks) > MAX_WRITES:
                return
            num_bytes, work = 0, small
        self._num_bytes += num_bytes
        try:
            await self._try_write(kind, work)
        except asyncio.CancelledError:
            self.count_lost(kind, "the gateway stops")
            raise
        finally:
            self._num_bytes -= num_bytes

    async def _try_write(self, kind: str, work: Work) -> None:
        give_up_at = asyncio.get_running_loop().time() + GIVE_UP_S
        while True:
            try:
                async with asyncio.timeout(TRY_S):
                    await work()
                return None
            except FAILURES as error:
                if asyncio.get_running_loop().time() > give_up_at:
                    return self.count_lost(kind, repr(error))
            except Exception as error:  # it would come again
                return self.count_lost(kind, repr(error))
            await asyncio.sleep(PAUSE_S)

    def count_lost(self, kind: str, reason: str) -> None:
        """Count and log content that could not be stored."""
        self._lost.labels(kind).inc()
        log.error("content_not_kept", kind=kind, error=reason)
