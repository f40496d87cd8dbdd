"""Bounds on the time that a connection may stay in one state, and on the bytes meanwhile.

Knows nothing about requests.
"""

from __future__ import annotations

import asyncio
import enum
import math
from collections.abc import Callable

import msgspec


class State(enum.StrEnum):
    """The states of a connection that waits for something, in the order in which they are tested.

    A value names the log event of a passed bound.
    """

    UNREAD = "client_does_not_read"
    """Waiting for a client that does not read: the write buffer is full, or a closed connection has bytes left."""
    UNWANTED_BODY = "unwanted_body_cut_off"
    """Receiving the rest of an answered request, such as an upload whose head was refused."""
    BODY = "body_does_not_arrive"
    RUNNING = "too_many_bytes_behind_a_request"
    """Computing the reply to a request, while the head of the next one may arrive."""
    IDLE = "connection_idle"
    """Waiting for the first byte of the next request after a reply."""
    HEAD = "head_does_not_arrive"
    """Receiving the rest of a head, or all of a connection's first one."""


class Bound(msgspec.Struct, frozen=True):
    """A bound on the time for which a connection may be in one state."""

    state: State
    max_s: float
    """The most seconds in the state."""
    late: bytes = b""
    """The bytes that are sent to a client that waits for a reply when max_s is over."""
    max_bytes: float = math.inf
    """The most bytes that may arrive in the state after those that began it."""
    too_large: bytes = b""
    """The bytes that are sent to a client that waits for a reply when max_bytes is exceeded."""
    bytes_per_s: float = math.inf
    """The highest rate, in bytes per second, at which the connection is read."""
    bytes_per_extra_s: float = math.inf
    """The number of received bytes that postpone the deadline by a second.

    The deadline is at most max_s from now: byte by byte takes no longer than silence.
    """


class Watch:
    """The timer of one connection. end: called with a bound that is passed, and the last bytes to send.

    Mostly a new deadline is later than the timer's time. Then the timer is left alone, and set to the deadline when it
    fires, since that costs less than to move it for each request.
    """

    def __init__(self, end: Callable[[Bound, bytes], None]) -> None:
        self._end = end
        self._bound: Bound | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline_s = 0.0
        self._num_bytes = 0

    def start(self, bound: Bound | None) -> None:
        """Apply another bound to the connection from now on; None: no bound."""
        self._bound, self._num_bytes = bound, 0
        if bound is not None and bound.max_s < math.inf:
            loop = asyncio.get_running_loop()
            self._deadline_s = loop.time() + bound.max_s
            if self._timer is None or self._timer.when() > self._deadline_s:
                self.stop()
                self._timer = loop.call_at(self._deadline_s, self._check_bound)

    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def count(self, num_bytes: int) -> float:
        """Count bytes that arrived in the same state. Return the seconds for which to stop reading."""
        bound = self._bound
        if bound is None:
            return 0.0
        self._num_bytes += num_bytes
        if self._num_bytes > bound.max_bytes:
            self._end(bound, bound.too_large)
            return 0.0
        latest_s = asyncio.get_running_loop().time() + bound.max_s
        self._deadline_s = min(latest_s, self._deadline_s + num_bytes / bound.bytes_per_extra_s)
        return num_bytes / bound.bytes_per_s

    def _check_bound(self) -> None:
        self._timer = None
        bound, loop = self._bound, asyncio.get_running_loop()
        if bound is None or bound.max_s == math.inf:
            return
        if self._deadline_s > loop.time():
            self._timer = loop.call_at(self._deadline_s, self._check_bound)
        else:
            self._end(bound, bound.late)
