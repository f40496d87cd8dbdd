"""Bodies that do not arrive: the time for which a request waits for its own. Knows nothing about requests."""

from __future__ import annotations

import asyncio

import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.http.protocol.heads import refusal

log = structlog.get_logger(__name__)

MIN_BYTES_PER_S = 1024
"""The number of bytes for which a body gets another second, so that a body byte by byte takes no longer than none."""

_TIMEOUT = refusal(b"408 Request Timeout", b"The body of the request did not arrive in time.", b"request_timeout")


def timely_bodies(base: type[HttpToolsProtocol], max_quiet_s: float) -> type[HttpToolsProtocol]:
    """Return a protocol for HTTP whose bodies keep arriving. max_quiet_s: time without any part of a body."""

    class TimelyBodies(base):  # type: ignore[misc, valid-type]
        timer: asyncio.TimerHandle | None = None
        deadline_s = 0.0

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if not self._waits_for_body():
                self._forget_timer()
                return
            now_s = self.loop.time()
            if self.timer is None:
                self.deadline_s = now_s + max_quiet_s
                self.timer = self.loop.call_at(self.deadline_s, self._check)
            self.deadline_s = min(now_s + max_quiet_s, self.deadline_s + len(data) / MIN_BYTES_PER_S)

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget_timer()
            super().connection_lost(exc)

        def _waits_for_body(self) -> bool:
            cycle = self.cycle
            return cycle is not None and cycle.more_body and not cycle.response_complete

        def _forget_timer(self) -> None:
            if self.timer is not None:
                self.timer.cancel()
                self.timer = None

        def _check(self) -> None:
            self.timer = None
            if not self._waits_for_body() or self.transport.is_closing():
                return
            if self.flow.read_paused:  # it is us who are slow
                self.deadline_s = self.loop.time() + max_quiet_s
            if self.deadline_s > self.loop.time():
                self.timer = self.loop.call_at(self.deadline_s, self._check)
                return
            log.warning("body_does_not_arrive", address=self.client[0] if self.client else "")
            if not self.cycle.response_started:
                self.transport.write(_TIMEOUT)
            self.transport.close()

    return TimelyBodies
