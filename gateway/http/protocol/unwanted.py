"""Bodies that nobody wants: the rest of a request that is answered already, such as an upload refused by its head.

The rest is read and dropped, so that the client sees why, and its connection serves the next request; but only so much
of it, for so long and at such a rate: a client that sends one after the other takes little of the gateway. Knows
nothing about requests.
"""

from __future__ import annotations

import asyncio

import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

log = structlog.get_logger(__name__)

MAX_UNWANTED_BYTES = 32 << 20
UNWANTED_BYTES_PER_S = 8 << 20
MAX_UNWANTED_S = 10.0
"""Seconds after the answer for which a body is dropped.

An adapter that is sent in one piece, as `lorikeet adapter add` does, is within them.
"""


def dropping_protocol(base: type[HttpToolsProtocol]) -> type[HttpToolsProtocol]:
    """Return a protocol for HTTP that closes connections on which an answered request goes beyond either bound."""

    class DroppingProtocol(base):  # type: ignore[misc, valid-type]
        unwanted_bytes = 0
        unwanted_deadline: asyncio.TimerHandle | None = None

        def data_received(self, data: bytes) -> None:
            if self.unwanted_deadline is not None:
                self.unwanted_bytes += len(data)
                if self.unwanted_bytes > MAX_UNWANTED_BYTES:
                    self._give_up()
                    return
                self.transport.pause_reading()
                self.loop.call_later(len(data) / UNWANTED_BYTES_PER_S, self._read_on)
            super().data_received(data)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            is_answered = self.cycle is not None and self.cycle.response_complete
            if is_answered and self.cycle.more_body and not self.transport.is_closing():
                self.unwanted_bytes = 0
                self.unwanted_deadline = self.loop.call_later(MAX_UNWANTED_S, self._give_up)

        def on_message_complete(self) -> None:
            super().on_message_complete()
            if self._forget_unwanted():  # the connection is idle from now on, and not since the answer
                self._unset_keepalive_if_required()
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )

        def on_message_begin(self) -> None:
            self._unset_keepalive_if_required()
            super().on_message_begin()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget_unwanted()
            super().connection_lost(exc)

        def _forget_unwanted(self) -> bool:
            """Forget the deadline of an unwanted connection; return whether there was one."""
            deadline, self.unwanted_deadline = self.unwanted_deadline, None
            if deadline is not None:
                deadline.cancel()
            return deadline is not None

        def _read_on(self) -> None:
            if not self.transport.is_closing():
                self.transport.resume_reading()

        def _give_up(self) -> None:
            self._forget_unwanted()
            log.info("unwanted_body_cut_off", address=self.client[0] if self.client else "", bytes=self.unwanted_bytes)
            self.transport.close()

    return DroppingProtocol
