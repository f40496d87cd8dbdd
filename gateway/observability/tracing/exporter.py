"""Sends spans to a collector by the OpenTelemetry protocol over HTTP, beside requests, which never wait for it.

A span is encoded as it ends: a thread that encodes thousands at once would keep requests waiting for the interpreter's
lock. Spans wait in a bounded queue. A span that finds no room there, or that the collector does not take after some
tries, is dropped and counted. Knows nothing of what spans say.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping

import httpx
import structlog
from prometheus_client import Counter

from gateway.domain.tracing.otlp import EncodedSpan, encode_request, encode_span
from gateway.domain.tracing.span import Attributes, Service, Span
from gateway.support.outbound import trusted_authorities
from gateway.support.worker import Worker

log = structlog.get_logger(__name__)

MAX_WAITING = 8192
"""The most spans that wait to be sent: those of two or three seconds, at a thousand requests a second."""
BATCH_SPANS = 1024
"""The most spans of one message."""
EVERY_S = 1.0
"""Seconds for which a span waits for others to be sent in the same message."""
TIMEOUT_S = 10.0
"""Seconds that the collector may take for one message."""
RETRY_AFTER_S = (1.0, 2.0, 4.0)
"""Seconds before each further try of a message that the collector may take later."""
STOP_S = 2.0
"""Seconds for sending the remaining spans when the gateway stops."""

_LATER = frozenset({429, 502, 503, 504})
"""The HTTP statuses of the collector after which a message is sent again, by the protocol."""


class NotTaken(Exception):
    """The error for a message that the collector did not accept; the text has the reason.

    may_retry: whether the same message may be taken later.
    """

    def __init__(self, why: str, *, may_retry: bool) -> None:
        super().__init__(why)
        self.may_retry = may_retry


class Exporter:
    """The `SpanSink` of a gateway process that sends spans to a collector between `start` and `stop`."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        resources: Mapping[Service, Attributes],
        outcomes: Counter,
        *,
        version: str,
        max_waiting: int = MAX_WAITING,
        every_s: float = EVERY_S,
        timeout_s: float = TIMEOUT_S,
        retry_after_s: tuple[float, ...] = RETRY_AFTER_S,
    ) -> None:
        """Prepare the exporter.

        url: the URL at which the collector takes traces; it usually ends in /v1/traces.
        headers: HTTP headers of each message, such as one with a key of the collector.
        resources: the attributes of each process whose spans there are. version: the version of the product.
        outcomes: counts spans by what became of them: sent, no_room or not_taken.
        """
        self._url = url
        self._headers = {"content-type": "application/x-protobuf", "user-agent": f"lorikeet/{version}", **headers}
        self._resources = resources
        self._version = version
        self._sent, self._no_room, self._not_taken = map(outcomes.labels, ("sent", "no_room", "not_taken"))
        self._max_waiting = max_waiting
        self._timeout_s = timeout_s
        self._retry_after_s = retry_after_s
        self._waiting: deque[EncodedSpan] = deque()
        self._being_sent: list[EncodedSpan] = []
        self._is_away = False
        self._worker = Worker(self._send_all, every_s, name="spans")
        self._client: httpx.AsyncClient | None = None

    @property
    def num_waiting(self) -> int:
        """Return the number of spans that wait to be sent."""
        return len(self._waiting)

    def add(self, span: Span) -> None:
        """Have a span sent soon, or drop it where too many wait."""
        if len(self._waiting) >= self._max_waiting:
            self._no_room.inc()
        else:
            self._waiting.append(encode_span(span))

    def start(self) -> None:
        """Begin to send."""
        limits = httpx.Limits(max_connections=1)
        self._client = httpx.AsyncClient(
            timeout=self._timeout_s, limits=limits, trust_env=False, verify=trusted_authorities()
        )
        self._worker.start()

    async def stop(self) -> None:
        """Send the waiting spans, within STOP_S; the rest is dropped and counted."""
        if self._client is None:
            return
        await self._worker.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                while self._being_sent or self._waiting:
                    await self._send_batch(())
        self._not_taken.inc(len(self._being_sent) + len(self._waiting))
        self._waiting.clear()
        await self._client.aclose()

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                await self._send_batch(self._retry_after_s)
                if len(self._waiting) < BATCH_SPANS:
                    break
        except Exception:
            self._drop_message()
            raise

    async def _send_batch(self, retry_after_s: tuple[float, ...]) -> None:
        """Send the spans that have waited longest, up to BATCH_SPANS; or drop them."""
        if not self._being_sent:
            self._being_sent = [self._waiting.popleft() for _ in range(min(BATCH_SPANS, len(self._waiting)))]
        body = encode_request(self._being_sent, self._resources, self._version)
        for wait_s in (*retry_after_s, None):
            try:
                await self._post(body)
                break
            except NotTaken as error:
                if wait_s is None or not error.may_retry:
                    self._note_away(str(error))
                    return self._drop_message()
            await asyncio.sleep(wait_s)
        self._sent.inc(len(self._being_sent))
        self._being_sent, self._is_away = [], False
        return None

    async def _post(self, body: bytes) -> None:
        """Send one message. Raises NotTaken: when the collector does not confirm that it has the message."""
        assert self._client is not None, "it was started"
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._client.post(self._url, content=body, headers=self._headers)
        except (TimeoutError, httpx.HTTPError, OSError) as error:
            raise NotTaken(repr(error), may_retry=True) from None
        if not answer.is_success:
            raise NotTaken(f"status {answer.status_code}", may_retry=answer.status_code in _LATER)

    def _drop_message(self) -> None:
        self._not_taken.inc(len(self._being_sent))
        self._being_sent = []

    def _note_away(self, why: str) -> None:
        """Log that the collector does not accept messages, unless this was logged since it accepted one last."""
        if not self._is_away:
            log.warning("spans_not_taken", why=why, num_spans=len(self._being_sent))
        self._is_away = True
