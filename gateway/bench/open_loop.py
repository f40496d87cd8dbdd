"""Requests that come when they come, whether the server keeps up or not, and requests as fast as they are answered.

In an open loop a latency counts from when its request was due, so a server that stalls is charged for all who waited.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Sequence
from typing import Any

from gateway.bench.http import Connection
from gateway.bench.load import quantile_ms

WARM_UP_SHARE = 0.2
"""Of the time of a row: what is asked in it is not counted."""


class Connections:
    """Idle connections, and those that are in use. More are never opened."""

    def __init__(self, connections: Sequence[Connection]) -> None:
        self._idle: asyncio.LifoQueue[Connection] = asyncio.LifoQueue()
        for connection in connections:
            self._idle.put_nowait(connection)

    async def ask(self, request: bytes) -> int:
        connection = await self._idle.get()
        try:
            return await connection.ask(request)
        finally:
            self._idle.put_nowait(connection)


async def at_rate(
    connections: Connections, requests: Sequence[bytes], per_s: float, seconds: float, rng: random.Random
) -> dict[str, Any]:
    """One row: Poisson arrivals at a mean rate. Latencies in ms."""
    loop = asyncio.get_running_loop()
    latencies_s: list[float] = []
    statuses: dict[int, int] = {}
    pending = set[asyncio.Task[None]]()
    start_s = time.perf_counter()
    counts_from_s = start_s + WARM_UP_SHARE * seconds

    async def one(due_s: float, request: bytes) -> None:
        status = await connections.ask(request)
        if due_s >= counts_from_s:
            statuses[status] = statuses.get(status, 0) + 1
            latencies_s.append(time.perf_counter() - due_s)

    def begin(due_s: float, request: bytes) -> None:
        task = loop.create_task(one(due_s, request))
        pending.add(task)
        task.add_done_callback(pending.discard)

    def arrive() -> None:
        """In a thread: the loop's timers count in ms, and what they are late would be charged to the server."""
        due_s = start_s
        for request in itertools.cycle(requests):
            due_s += rng.expovariate(per_s)
            if due_s > start_s + seconds:
                break
            if (wait_s := due_s - time.perf_counter()) > 0:
                time.sleep(wait_s)
            loop.call_soon_threadsafe(begin, due_s, request)

    await asyncio.to_thread(arrive)
    await asyncio.gather(*pending)
    return _row(latencies_s, statuses, (1 - WARM_UP_SHARE) * seconds) | {"offered_per_s": per_s}


async def as_fast_as_possible(
    connections: Connections, requests: Sequence[bytes], num_streams: int, seconds: float
) -> dict[str, Any]:
    """One row: each stream asks again when it is answered. Latencies in ms."""
    latencies_s: list[float] = []
    statuses: dict[int, int] = {}
    end_s = time.perf_counter() + seconds
    counts_from_s = time.perf_counter() + WARM_UP_SHARE * seconds
    waiting = itertools.cycle(requests)

    async def stream() -> None:
        while (sent_s := time.perf_counter()) < end_s:
            status = await connections.ask(next(waiting))
            if sent_s >= counts_from_s:
                statuses[status] = statuses.get(status, 0) + 1
                latencies_s.append(time.perf_counter() - sent_s)

    await asyncio.gather(*(stream() for _ in range(num_streams)))
    return _row(latencies_s, statuses, (1 - WARM_UP_SHARE) * seconds) | {"offered_per_s": None}


def _row(latencies_s: list[float], statuses: dict[int, int], seconds: float) -> dict[str, Any]:
    count = sum(statuses.values())
    return {
        "per_s": round(count / seconds, 1),
        "requests": count,
        "errors": count - statuses.get(200, 0),
        "statuses": {str(status): number for status, number in sorted(statuses.items())},
        **{f"ms_p{round(q * 100)}": quantile_ms(latencies_s, q, digits=3) for q in (0.5, 0.95, 0.99)},
    }
