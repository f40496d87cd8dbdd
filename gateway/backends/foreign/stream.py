"""The reply to one request, read from its server within the bounds of size and time.

While a reader waits, what comes is read in the call that brings it, and the reader wakes once there is a part: the
counts of all streams that something came of are noted together then. Behind a reader that is busy, bytes wait unread.
Knows neither how requests are admitted nor what becomes of their usage.
"""

from __future__ import annotations

import asyncio

from gateway.backends.foreign.attempt import Attempt
from gateway.backends.foreign.connection import Connection, ServerGone
from gateway.backends.foreign.driver import Driver, EndReader, Framing, Reader, ServerInfo
from gateway.backends.foreign.errors import read_refusal
from gateway.backends.foreign.lines import LineSplitter
from gateway.backends.foreign.noted_counts import NotedCounts
from gateway.backends.foreign.reply import MAX_OBJECTS, BadReply, Part, check_objects
from gateway.backends.foreign.server import Server
from gateway.backends.foreign.sse import EventReader
from gateway.backends.generation import Generation
from gateway.domain.pools.foreign_settings import ForeignSettings
from gateway.domain.pools.provider_key import ProviderKey
from gateway.domain.routing.foreign_usage import MAX_TOKEN_BYTES

ERROR_WITHIN_S = 5.0
"""The most seconds for reading a whole error."""

SPARE_EVENTS = 1024
"""The events that a reply may have beyond four for each requested token."""

EVENT_BYTES, REPEATED_BYTES = 4096, 32
"""The bytes that an event may have on average, and more for each requested token, since SGLang repeats the reply in
each event."""

FIELD_BYTES = 64
"""The bytes that an event may have beside its data, such as its name and id."""

MAX_SKIPPED_BYTES = 4 << 20
"""The most bytes of a reply that belong to no complete event, such as comments."""

SPARE_LINES, EVENT_LINES = 1 << 16, 8
"""The line ends that a reply may have, and more for each event: a line takes time, however short it is."""

SPARE_BYTES = 4096
"""The bytes of text that a reply may have beyond MAX_TOKEN_BYTES for each requested token."""

SPARE_TOKENS = 16
"""Token ids that a reply may have beyond those that were asked for."""

CONTENT_TYPES: dict[Framing, str] = {"events": "text/event-stream", "lines": "application/x-ndjson"}
"""The beginning of the content type of a stream."""


class ReplyStream:
    """The reply to one request, from the first `take` to `close` or `cut`."""

    def __init__(
        self,
        server: Server,
        driver: Driver,
        settings: ForeignSettings,
        generation: Generation,
        info: ServerInfo,
        attempt: Attempt,
        noted: NotedCounts,
        key: ProviderKey | None = None,
    ) -> None:
        """Prepare the reply to a generation's own request, which the first `take` sends.

        attempt: counts what comes.
        noted: collects the attempts whose counts are to be recorded.
        key: the key of the project that asks; None where the server is asked with the pool's key.
        """
        self.key = key
        """The project's own key; None: requests have the pool's key."""
        self.attempt = attempt
        self.adapter = generation.request.adapter
        """The content key of the adapter that is asked for, "" for the base."""
        self.sent = b""
        """The body of the request."""
        self._server = server
        self._driver = driver
        self._settings = settings
        self._generation = generation
        self._info = info
        self._noted = noted
        self._now_s = asyncio.get_running_loop().time
        self._connection: Connection | None = None
        self._events: EventReader | LineSplitter = EventReader()
        self._reader: Reader | None = None
        self._has_asked = False
        self._until_s = self._part_until_s = 0.0
        self._waits_since_s = 0.0
        """The time since which the next part is waited for."""
        self._came_s: float | None = None
        """The time at which the parts came that the reader got last."""
        self._parts: list[Part] = []
        """The parts that came and that the reader was not given yet."""
        self._error: Exception | None = None
        """The error that the reader gets instead of further parts."""
        self._is_at_end = False
        self._has_ended = False
        request = generation.request
        max_tokens = request.n * request.sampling.max_tokens
        self._num_events_left = 4 * max_tokens + SPARE_EVENTS
        self._num_bytes_left = self._num_events_left * (EVENT_BYTES + REPEATED_BYTES * max_tokens)
        self._num_skipped = 0
        self._num_lines_left = SPARE_LINES
        self._max_tokens = max_tokens + SPARE_TOKENS
        self._max_bytes = MAX_TOKEN_BYTES * max_tokens + SPARE_BYTES

    def cut(self) -> None:
        """Close the connection, since this gateway stops. `take` raises ServerGone then."""
        self.attempt.is_cut_off = True
        if self._connection is not None:
            self._connection.cut("this gateway stops")

    async def take(self) -> list[Part] | None:
        """Return the parts of the reply that came since the last call, and count them; None at the end of the reply.

        The first call sends the request. The time for which a reader keeps the parts does not count as time of the
        server.

        Raises ServerGone: when the server is lost or too slow.
        Raises ServerRefused: when the server answers with an error.
        Raises BadReply, ReplyRefused or EventTooLarge: when the reply is not what the driver understands or allows.
        """
        attempt, now_s = self.attempt, self._now_s()
        if not self._has_asked:
            await self._begin(now_s)
        elif self._came_s is not None:
            if attempt.stopped_at and attempt.is_complete:
                return None  # the stop strings have ended all choices
            self._until_s += now_s - self._came_s
            self._part_until_s = min(self._until_s, now_s + self._settings.idle_seconds)
            self._waits_since_s = now_s
        connection = self._connection
        assert connection is not None, "it was asked, and is not closed"
        while not (self._parts or self._is_at_end or self._error):
            if connection.has_left_over:
                await asyncio.sleep(0)  # others have their turn
            if not self._read(connection):
                await connection.wait(self._part_until_s, self._read_arrived)
        if self._error is not None:
            raise self._error
        if parts := self._parts:
            self._parts = []
            self._noted.note()
            return parts
        if not attempt.is_complete:
            raise BadReply("its reply ended before the choices did")
        self._has_ended = True
        return None

    def close(self) -> None:
        """Give the connection back; it is cut off where the reply has not come to its end. May be called again."""
        self._noted.forget(self.attempt)
        given, self._connection, self._has_asked = self._connection, None, False
        if given is not None:
            self._server.give(given, has_ended=self._has_ended)

    async def _begin(self, now_s: float) -> None:
        """Send the request, and wait for the head of a stream. Raises as `take`."""
        self._has_asked, self._error = True, None
        self._until_s = now_s + self._settings.total_seconds
        self._part_until_s = min(self._until_s, now_s + self._settings.first_token_seconds)
        self._events = LineSplitter() if self._driver.framing == "lines" else EventReader()
        self._reader = self._driver.reader(self._generation)
        self._connection = await self._send_request(self._info, self._part_until_s)

    def _read_arrived(self) -> bool:
        """Read the bytes that arrived while the reader waits; tell whether the reader has to wake."""
        connection = self._connection
        if connection is None or not self._read(connection):
            return True
        return bool(self._parts or self._is_at_end or self._error or connection.has_left_over or connection.is_done)

    def _read(self, connection: Connection) -> bool:
        """Read the bytes that have come, at most READ_BYTES; tell whether there was anything, be it an error."""
        try:
            data = connection.take()
            if data is None:
                return False
            self._add(data)
        except Exception as error:  # its reader is to get it, and not the transport
            self._error = error
        return True

    def _add(self, data: bytes) -> None:
        """Process the events that became complete. data: b"" at the end of the reply."""
        attempt, reader, now_s, had_begun = self.attempt, self._reader, self._now_s(), self.attempt.has_begun
        if now_s > self._part_until_s:  # such as by comments alone
            raise ServerGone("its next part does not come in time", has_begun=True)
        assert reader is not None, "it was asked"
        events = self._events
        num_lines = events.num_lines
        found = events.push(data) if data else events.finish()
        self._bound(len(data), found, events.num_lines - num_lines)
        parts: list[Part] = []
        for each in found:
            if len(each) > MAX_OBJECTS:
                check_objects(each)
            event = reader.read(each)
            if event.parts:
                parts += attempt.add(event.parts)
            if event.usage is not None:
                attempt.report(event.usage)
            if event.is_end:
                self._is_at_end = True
        if not data:
            self._is_at_end = True
            if isinstance(reader, EndReader):
                event = reader.end()
                parts += attempt.add(event.parts)
                if event.usage is not None:
                    attempt.report(event.usage)
        if not parts:
            return
        if attempt.num_text_bytes > self._max_bytes or attempt.num_token_ids > self._max_tokens:
            raise BadReply("its reply is longer than was asked for")
        if had_begun:
            attempt.waited(now_s - self._waits_since_s)
        self._came_s = now_s
        self._parts = parts
        self._noted.add(attempt)

    def _bound(self, num_bytes: int, found: list[bytes], num_lines: int) -> None:
        """Count the bytes, events and lines of the reply against their bounds.

        Raises BadReply: when they are more than any reply to this request needs.
        """
        num_events = len(found)
        self._num_events_left -= num_events
        self._num_bytes_left -= num_bytes
        num_found_bytes = len(found[0]) if num_events == 1 else sum(map(len, found))
        self._num_skipped += num_bytes - num_found_bytes - FIELD_BYTES * num_events
        self._num_lines_left -= num_lines - EVENT_LINES * num_events
        if self._num_events_left < 0:
            raise BadReply("its reply has too many events")
        if self._num_bytes_left < 0:
            raise BadReply("its reply has too many bytes")
        if self._num_skipped > MAX_SKIPPED_BYTES or self._num_lines_left < 0:
            raise BadReply("its reply has too many bytes outside of events")

    async def _send_request(self, info: ServerInfo, head_until_s: float) -> Connection:
        """Send the request; return the connection once the head of a stream is there. Raises as `take`."""
        request = self._generation.request
        asked = self._driver.request(self._generation, info)
        self.sent = asked.body

        def sent(connection: Connection) -> None:
            self._connection = connection
            if self.attempt.is_cut_off:  # while it was being connected
                connection.cut("this gateway stops")

        connection = await self._server.ask(
            "POST",
            asked.path,
            asked.body,
            request_id=f"{request.request_id}.{request.attempt}" if request.attempt else request.request_id,
            trace="" if self._settings.trace_context == "never" else self._generation.trace,
            is_traced_outside=self._settings.trace_context == "always",
            until_s=head_until_s,
            sent=sent,
            proof=asked.proof,
            key=None if self.key is None else self.key.secret,
        )
        if connection.status != 200:
            error_until_s = asyncio.get_running_loop().time() + ERROR_WITHIN_S
            refused = await read_refusal(connection, min(self._until_s, error_until_s))
            way = self._driver.adapters
            if self.adapter and way is not None and way.missing is not None and way.missing.search(refused.text):
                refused.status = 404
            raise refused
        if not connection.headers.get("content-type", "").startswith(CONTENT_TYPES[self._driver.framing]):
            raise BadReply(f"its reply is no stream of {self._driver.framing}")
        return connection
