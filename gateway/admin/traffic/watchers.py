"""The live streams of one gateway process: their number is bounded, and data is read once for all of them.

Knows nothing of the data.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from gateway.db.changes import Change
from gateway.domain.errors import LimitReached

T = TypeVar("T")

MAX_STREAMS = 8
"""The most live streams of one login, or of one key."""


class Watcher(Protocol):
    """A live stream."""

    @property
    def owner_id(self) -> str:
        """The id of the login or key that the stream counts for."""
        ...

    def changed(self, change: Change | None) -> None:
        """Record a change that the stream may have to announce. None: anything may have changed."""
        ...

    def wake(self) -> None:
        """Wake the stream from its pause."""
        ...


class Watchers:
    """The live streams of one gateway process. The change feed has to call `changed`."""

    def __init__(self) -> None:
        self.is_closing = False
        self._num_streams: Counter[str] = Counter()
        self._watchers: list[Watcher] = []
        self._results: dict[object, tuple[float, asyncio.Task[Any]]] = {}

    def changed(self, change: Change | None) -> None:
        """Pass a change on to every stream. None: anything may have changed."""
        for watcher in self._watchers:
            watcher.changed(change)

    def close(self) -> None:
        """End every stream: an open one would hold up the gateway's stop."""
        self.is_closing = True
        for watcher in self._watchers:
            watcher.wake()

    def join(self, watcher: Watcher) -> None:
        """Count a stream until `leave`.

        Raises LimitReached: when the login or key has too many streams.
        """
        if self._num_streams[watcher.owner_id] >= MAX_STREAMS:
            raise LimitReached(f"At most {MAX_STREAMS} live streams may be open at a time.", retry_after_s=5.0)
        self._num_streams[watcher.owner_id] += 1
        self._watchers.append(watcher)

    def leave(self, watcher: Watcher) -> None:
        """Stop counting a stream. When no stream is left, forget the results that streams shared."""
        self._watchers.remove(watcher)
        self._num_streams[watcher.owner_id] -= 1
        if not self._num_streams[watcher.owner_id]:
            del self._num_streams[watcher.owner_id]
        if not self._watchers:
            self._results.clear()

    async def shared_result(self, key: object, seconds: float, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `work`, which runs once in `seconds` for all streams that ask by the same key."""
        now_s = time.monotonic()
        result = self._results.get(key)
        if result is None or now_s - result[0] >= 0.9 * seconds:
            self._results[key] = result = (now_s, asyncio.ensure_future(_as_coroutine(work)))
        found: T = await asyncio.shield(result[1])  # others wait for it, even if this client leaves meanwhile
        return found


async def _as_coroutine(work: Callable[[], Awaitable[T]]) -> T:
    return await work()
