"""Requests at a rate, whether the server keeps up or not, and requests as fast as they are answered.

In an open loop a latency counts from the time when its request was due, so a server that stalls is charged for all
waiting requests.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Iterable, Sequence
from typing import Any

from gateway.bench.http import Connection
from gateway.bench.load import quantile_ms

WARM_UP_SHARE = 0.2
"""The first part of a row's time, whose requests are not counted."""


FAILED = 0
"""The status of a request whose connection was lost, or could not be made."""


class Connections:
    """Connections to a server, idle or in use. Their number is fixed; one that was closed is opened again."""

    def __init__(self, connections: Sequence[Connection]) -> None:
        self._idle: asyncio.LifoQueue[Connection] = asyncio.LifoQueue()
        for connection in connections:
            self._idle.put_nowait(connection)

    async def ask(self, request: bytes) -> int:
        """Send a request and return the status of the reply, or FAILED."""
        connection = await self._idle.get()
        try:
            if connection.is_closed:
                connection = await connection.reopen()
            return await connection.ask(request)
        except OSError:
            return FAILED
        finally:
            self._idle.put_nowait(connection)

    def close(self) -> None:
        """Close the idle connections, which are all of them once everything was asked."""
        while not self._idle.empty():
            self._idle.get_nowait().close()


class _Counted:
    """The counts of requests by status since a time, and their latencies."""

    def __init__(self, from_s: float) -> None:
        self._from_s = from_s
        self._last_s = from_s
        self._latencies_s: list[float] = []
        self._statuses: dict[int, int] = {}

    def count(self, status: int, due_s: float) -> None:
        """Count a request that has just ended, due at due_s. A failed request has no latency."""
        if due_s < self._from_s:
            return
        self._statuses[status] = self._statuses.get(status, 0) + 1
        if status != FAILED:
            self._last_s = time.perf_counter()
            self._latencies_s.append(self._last_s - due_s)

    @property
    def is_empty(self) -> bool:
        return not self._statuses

    def row(self, offered_per_s: float | None) -> dict[str, Any]:
        """Return one row. Latencies are in ms; `per_s` in the row is answers per second up to the last one."""
        count, answered = sum(self._statuses.values()), len(self._latencies_s)
        seconds = self._last_s - self._from_s
        return {
            "per_s": round(answered / seconds, 1) if answered else 0.0,
            "requests": count,
            "errors": count - self._statuses.get(200, 0),
            "statuses": {str(status): number for status, number in sorted(self._statuses.items())},
            **{f"ms_p{round(q * 100)}": quantile_ms(self._latencies_s, q, digits=3) for q in (0.5, 0.95, 0.99)},
            "offered_per_s": offered_per_s,
        }


async def at_rate(
    connections: Connections, requests: Iterable[bytes], per_s: float, seconds: float, rng: random.Random
) -> dict[str, Any]:
    """Send requests at a mean rate with Poisson arrivals; return the row of figures, latencies in ms.

    per_s: the mean number of requests a second. seconds: how long they are sent.
    """
    loop = asyncio.get_running_loop()
    start_s = time.perf_counter()
    counted = _Counted(start_s + WARM_UP_SHARE * seconds)

    async def one(due_s: float, request: bytes) -> None:
        counted.count(await connections.ask(request), due_s)

    def begin(group: asyncio.TaskGroup, due_s: float, request: bytes) -> None:
        group.create_task(one(due_s, request))

    def arrive(group: asyncio.TaskGroup) -> None:
        """Send requests from a thread.

        The loop's timers count in ms, and their delay would be charged to the server.
        """
        due_s = start_s
        for request in itertools.cycle(requests):
            due_s += rng.expovariate(per_s)
            if due_s > start_s + seconds:
                break
            if (wait_s := due_s - time.perf_counter()) > 0:
                time.sleep(wait_s)
            loop.call_soon_threadsafe(begin, group, due_s, request)

    async with asyncio.TaskGroup() as group:
        await asyncio.to_thread(arrive, group)
    return counted.row(per_s)


async def as_fast_as_possible(
    connections: Connections, requests: Iterable[bytes], num_streams: int, seconds: float
) -> dict[str, Any]:
    """Have each stream send its next request when it is answered; return the row of figures, latencies in ms.

    seconds: how long requests are sent.
    """
    start_s = time.perf_counter()
    counted = _Counted(start_s + WARM_UP_SHARE * seconds)
    waiting = itertools.cycle(requests)

    async def stream() -> None:
        while (sent_s := time.perf_counter()) < start_s + seconds or counted.is_empty:
            counted.count(await connections.ask(next(waiting)), sent_s)

    async with asyncio.TaskGroup() as group:
        for _ in range(num_streams):
            group.create_task(stream())
    return counted.row(None)
