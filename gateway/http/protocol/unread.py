"""Clients that do not read their replies: the bytes of a reply that wait for one, and the time for which they wait.

A stream's events wait for room: in the client's own window, then in this machine's kernel, then in the buffer of the
connection. Once all is full the stream waits, with the deltas that its engine sends meanwhile
(`gateway.backends.engine.backlog`). A client that makes no room in time is cut off, and its work aborted: it would hold
its place for ever. Knows nothing about requests.
"""

from __future__ import annotations

import asyncio
import socket

import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

log = structlog.get_logger(__name__)

MAX_UNSENT_BYTES = 64 << 10
"""The most unsent bytes of a connection in the kernel. Without this bound it grows to megabytes (tcp(7), tcp_wmem)."""

MAX_BUFFERED_BYTES = 16 << 10
"""The most buffered bytes of a connection in this process, beside what one write adds."""


def reading_protocol(max_unread_s: float) -> type[HttpToolsProtocol]:
    """Return Uvicorn's protocol for HTTP, for clients that read.

    max_unread_s: the longest time from a full buffer to one that has room again, and from the end of a reply to its
    last byte.
    """

    class ReadingProtocol(HttpToolsProtocol):
        deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            transport.set_write_buffer_limits(high=MAX_BUFFERED_BYTES)
            connection = transport.get_extra_info("socket")
            if connection.family in (socket.AF_INET, socket.AF_INET6):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_UNSENT_BYTES)

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget_deadline()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._set_deadline()

        def resume_writing(self) -> None:
            self._forget_deadline()
            super().resume_writing()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.transport.is_closing():
                self._set_deadline()

        def timeout_keep_alive_handler(self) -> None:
            if self.transport.get_write_buffer_size():
                self.transport.abort()  # a close would wait for bytes that nobody reads
            super().timeout_keep_alive_handler()

        def _set_deadline(self) -> None:
            if self.deadline is None:
                self.deadline = self.loop.call_later(max_unread_s, self._cut_off)

        def _forget_deadline(self) -> None:
            if self.deadline is not None:
                self.deadline.cancel()
                self.deadline = None

        def _cut_off(self) -> None:
            log.warning("client_does_not_read", address=self.client[0] if self.client else "")
            self.transport.abort()

    return ReadingProtocol
