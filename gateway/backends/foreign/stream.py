"""The reply to one request, read from its server within the bounds of size and time.

Knows neither how requests are admitted nor what becomes of their usage.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from gateway.backends.foreign.attempt import Attempt
from gateway.backends.foreign.connection import Connection, ServerGone
from gateway.backends.foreign.driver import Driver, EndReader, Framing, ServerInfo
from gateway.backends.foreign.errors import read_refusal
from gateway.backends.foreign.lines import LineSplitter
from gateway.backends.foreign.reply import BadReply, Event, Part, check_objects
from gateway.backends.foreign.server import Server
from gateway.backends.foreign.sse import EventReader
from gateway.backends.generation import Generation
from gateway.domain.pools.foreign_settings import ForeignSettings
from gateway.domain.pools.provider_key import ProviderKey
from gateway.domain.routing.foreign_usage import MAX_TOKEN_BYTES

ERROR_WITHIN_S = 5.0
"""Longest time of a whole error."""

SPARE_EVENTS = 1024
"""Events of a reply beside four for each token that was asked for."""

EVENT_BYTES, REPEATED_BYTES = 4096, 32
"""Bytes of one event on average, and for each token that was asked for: SGLang repeats the reply in each event."""

FIELD_BYTES = 64
"""Bytes of an event beside its data, such as its name and id."""

MAX_SKIPPED_BYTES = 4 << 20
"""Bytes of a reply that belong to no event, such as comments, those of an event on its way included."""

SPARE_LINES, EVENT_LINES = 1 << 16, 8
"""Line ends of a reply, and those of each event beside them: a line takes time, however short it is."""

SPARE_BYTES = 4096
"""Bytes of text of a reply beside MAX_TOKEN_BYTES for each token that was asked for."""

SPARE_TOKENS = 16
"""Token ids of a reply beside those that were asked for."""

CONTENT_TYPES: dict[Framing, str] = {"events": "text/event-stream", "lines": "application/x-ndjson"}
"""The beginning of the content type of a stream."""


class ReplyStream:
    """The reply to one request, from `parts` to its end or to `cut`."""

    def __init__(
        self,
        server: Server,
        driver: Driver,
        settings: ForeignSettings,
        generation: Generation,
        attempt: Attempt,
        key: ProviderKey | None = None,
    ) -> None:
        """attempt: counts what comes; the generation's own request is the one that is sent. key: of the project that
        asks, where the server is not asked with the pool's."""
        self.key = key
        """The project's own key; None: the server is asked with the pool's."""
        self.attempt = attempt
        self.adapter = generation.request.adapter
        """The content key of the adapter that is asked for, "" for the base."""
        self.sent = b""
        """The body of the request."""
        self._server = server
        self._driver = driver
        self._settings = settings
        self._generation = generation
        self._connection: Connection | None = None
        self._until_s = 0.0
        request = generation.request
        max_tokens = request.n * request.sampling.max_tokens
        self._num_events_left = 4 * max_tokens + SPARE_EVENTS
        self._num_bytes_left = self._num_events_left * (EVENT_BYTES + REPEATED_BYTES * max_tokens)
        self._num_skipped = 0
        self._num_lines_left = SPARE_LINES
        self._max_tokens = max_tokens + SPARE_TOKENS
        self._max_bytes = MAX_TOKEN_BYTES * max_tokens + SPARE_BYTES

    def cut(self) -> None:
        """Cut the connection off: this gateway stops. `parts` raises ServerGone."""
        self.attempt.is_cut_off = True
        if self._connection is not None:
            self._connection.cut("this gateway stops")

    async def parts(self, info: ServerInfo) -> AsyncGenerator[list[Part]]:
        """Send the request, and yield the parts of its reply that came since the last item.

        The time for which a reader keeps an item is no time of the server's.

        Raises ServerGone, ServerRefused, BadReply, ReplyRefused or EventTooLarge.
        """
        settings, attempt, now_s = self._settings, self.attempt, asyncio.get_running_loop().time
        self._until_s = now_s() + settings.total_seconds
        part_until_s = min(self._until_s, now_s() + settings.first_token_seconds)
        has_ended = False
        try:
            connection = await self._asked(info, part_until_s)
            is_lines = self._driver.framing == "lines"
            reader, events = self._driver.reader(self._generation), LineSplitter() if is_lines else EventReader()
            is_end = False
            while not is_end:
                read_s = now_s()
                data = await connection.read(part_until_s)
                if attempt.has_begun:
                    attempt.waited(now_s() - read_s)
                if now_s() > part_until_s:  # such as by comments alone
                    raise ServerGone("its next part does not come in time", has_begun=True)
                found = events.push(data) if data else events.finish()
                self._bound(data, found)
                is_end = not data
                parts: list[Part] = []
                for each in found:
                    check_objects(each)
                    event = reader.read(each)
                    parts += self._counted(event)
                    is_end = is_end or event.is_end
                if not data and isinstance(reader, EndReader):
                    parts += self._counted(reader.end())
                if not parts:
                    continue
                if attempt.num_text_bytes > self._max_bytes or attempt.num_token_ids > self._max_tokens:
                    raise BadReply("its reply is longer than was asked for")
                attempt.progressed()
                yielded_s = now_s()
                yield parts
                self._until_s += now_s() - yielded_s
                if attempt.stopped_at and attempt.is_complete:
                    return  # the stop strings have ended all choices
                part_until_s = min(self._until_s, now_s() + settings.idle_seconds)
            if not attempt.is_complete:
                raise BadReply("its reply ended before the choices did")
            has_ended = True
        finally:
            given, self._connection = self._connection, None
            if given is not None:
                self._server.give(given, has_ended=has_ended)

    def _bound(self, data: bytes, found: list[bytes]) -> None:
        """Count what came; raise BadReply where it is more than any reply to this request needs."""
        self._num_events_left -= len(found)
        self._num_bytes_left -= len(data)
        self._num_skipped += len(data) - sum(len(each) + FIELD_BYTES for each in found)
        self._num_lines_left -= data.count(b"\n") - EVENT_LINES * len(found)
        if self._num_events_left < 0:
            raise BadReply("its reply has too many events")
        if self._num_bytes_left < 0:
            raise BadReply("its reply has too many bytes")
        if self._num_skipped > MAX_SKIPPED_BYTES or self._num_lines_left < 0:
            raise BadReply("its reply has too much beside its events")

    async def _asked(self, info: ServerInfo, head_until_s: float) -> Connection:
        """Send the request; return the connection once the head of a stream is there. Raises as `parts`."""
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

    def _counted(self, event: Event) -> list[Part]:
        """Count an event; return its parts without those of choices that had ended before."""
        parts = [part for part in event.parts if part.index not in self.attempt.finished]
        if parts:
            self.attempt.add(parts)
        if event.usage is not None:
            self.attempt.report(event.usage)
        return parts
