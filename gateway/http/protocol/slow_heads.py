"""Connections on which no request begins, and heads that do not end: the time for which a connection waits for a head.

Uvicorn arms a timer only after a reply, and any byte disarms that timer. Knows nothing about requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.http.protocol.heads import refusal

log = structlog.get_logger(__name__)

LAST_HEAD_S = 1.0
"""Seconds for which a connection without a request may wait for its first one while the server stops."""

_TIMEOUT = refusal(b"408 Request Timeout", b"The headers of the request did not arrive in time.", b"request_timeout")


class HeadDeadline:
    """The time until which one head has to be complete. Bytes of the head do not extend that time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, max_head_s: float, on_passed: Callable[[], None]) -> None:
        self._loop = loop
        self._max_head_s = max_head_s
        self._on_passed = on_passed
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Start the time for a head; without effect where the time runs already."""
        if self._timer is None:
            self._timer = self._loop.call_later(self._max_head_s, self._pass)

    def end(self) -> None:
        """Stop the time: the head is complete, or the connection is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _pass(self) -> None:
        self._timer = None
        self._on_passed()


def timely_heads(base: type[HttpToolsProtocol], max_head_s: float) -> type[HttpToolsProtocol]:
    """Return a protocol for HTTP that closes a connection whose head is not complete in time.

    max_head_s: seconds from the connection's beginning, or from the first byte that followed a reply.
    Silence after a reply is bounded by uvicorn's own timer.
    """

    class TimelyHeads(base):  # type: ignore[misc, valid-type]
        head_deadline: HeadDeadline
        is_head_begun = False
        is_ending = False

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self.head_deadline = HeadDeadline(self.loop, max_head_s, self._give_up_head)
            if not transport.is_closing():
                self.head_deadline.begin()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._waits_for_head():
                self.is_head_begun = True
                self.head_deadline.begin()
            else:
                self.is_head_begun = False
                self.head_deadline.end()

        def connection_lost(self, exc: Exception | None) -> None:
            self.head_deadline.end()
            super().connection_lost(exc)

        def shutdown(self) -> None:
            """Close an idle connection.

            One that is new gets a moment for its first request, which is on its way: its client cannot tell that from a
            request that was begun, and must not repeat it.
            """
            if self.cycle is None and not self.transport.is_closing():
                self.is_ending = True
                self.loop.call_later(LAST_HEAD_S, self._end_unused)
            else:
                super().shutdown()

        def on_headers_complete(self) -> None:
            super().on_headers_complete()
            if self.is_ending and self.cycle is not None:
                self.cycle.keep_alive = False

        def _end_unused(self) -> None:
            if self.cycle is None and not self.transport.is_closing():
                self.transport.close()

        def _waits_for_head(self) -> bool:
            """Tell whether the bytes just read belong to a head that is not complete.

            Then no request runs, none has a body to come, and uvicorn does not count the connection as idle.
            """
            cycle = self.cycle
            is_idle = cycle is None or (cycle.response_complete and not cycle.more_body)
            return is_idle and self.timeout_keep_alive_task is None and not self.transport.is_closing()

        def _give_up_head(self) -> None:
            if self.transport.is_closing():
                return
            log.info("head_does_not_arrive", address=self.client[0] if self.client else "")
            if self.is_head_begun:
                self.transport.write(_TIMEOUT)
            self.transport.close()

    return TimelyHeads
