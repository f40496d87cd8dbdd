"""One connection of a client: uvicorn's protocol for HTTP with a cap and bounds. Knows no bound's figures and no route.

Uvicorn promises nothing of most names that are used here, so its minor version is pinned, and each of them has a test
(`tests/gateway/http/test_uvicorn_names.py`).
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Mapping
from typing import Any

import httptools
import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.http.protocol.bounds import Bound, State, Watch
from gateway.http.protocol.cap import ConnectionCap
from gateway.http.protocol.framing import Excess, parser_for, refusal_of_head, without_upgrade
from gateway.http.protocol.refusals import FULL, NO_HTTP, TOO_MANY
from gateway.http.protocol.replies import LastWrites, with_fitted_replies

log = structlog.get_logger(__name__)

LINGER_S = 2.0
"""Seconds for which the bytes of a refused client are dropped: it may not see why if its connection ends at once."""

LAST_HEAD_S = 1.0
"""Seconds for which a connection without a request may wait for its first one while the server stops."""

MAX_UNSENT_BYTES = 64 << 10
"""The most unsent bytes of a connection in the kernel. Without this bound it grows to megabytes (tcp(7), tcp_wmem)."""

MAX_BUFFERED_BYTES = 16 << 10
"""The most buffered bytes of a connection in this process, beside what one write adds."""


class HeadRefused(Exception):
    """The error that ends the parsing of a request whose head is refused."""


class Connection(HttpToolsProtocol):
    """A client's connection, which counts against the cap and is ended when it passes the bound of its state."""

    def __init__(self, cap: ConnectionCap, bounds: Mapping[State, Bound], **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._cap = cap
        self._is_counted = self._is_refused = self._is_stopping = False
        self._is_silent = True  # no byte has come since the connection was made, or since the last reply
        self._is_past_head = self._is_ending = False
        self._excess = Excess()
        self._bounds = bounds
        self._state: tuple[State, object] | None = None
        self._watch = Watch(self._give_up)

    @property
    def address(self) -> str:
        """The client's address; empty where the socket has none."""
        return self.client[0] if self.client else ""

    def _current(self) -> tuple[State, object] | None:
        """Return the state, with the request that it is about, if any."""
        cycle = self.cycle
        if self.flow.write_paused or self.transport.is_closing():
            return State.UNREAD, None
        if self._is_ending:
            return State.UNWANTED_BODY, None
        if self._is_refused:  # requests before what was refused are answered
            is_running = cycle is not None and not (cycle.disconnected or cycle.response_complete)
            return (State.RUNNING, cycle) if is_running else None
        if cycle is not None and cycle.more_body:
            return State.UNWANTED_BODY if cycle.response_complete else State.BODY, cycle
        if cycle is not None and not cycle.response_complete:
            return State.RUNNING, cycle
        return State.IDLE if self._is_silent and cycle is not None else State.HEAD, cycle

    def _apply_bound(self, num_bytes: int = 0) -> None:
        """Apply the bound of the present state after an event. num_bytes: the bytes that have arrived."""
        state = self._current()
        if state != self._state:
            self._state = state
            self._watch.start(self._bounds.get(state[0]) if state is not None else None)
        elif num_bytes and (pause_s := self._watch.count(num_bytes)) > 0:
            self.transport.pause_reading()
            self.loop.call_later(pause_s, self._read_on)

    def _read_on(self) -> None:
        if not self.transport.is_closing():
            self.transport.resume_reading()

    def _give_up(self, bound: Bound, reply: bytes) -> None:
        """End a connection that passed a bound. reply: the last bytes for a client that waits for a reply."""
        if bound.state is State.BODY and self.flow.read_paused:  # it is this process that is slow
            self._watch.start(bound)
            return
        if bound.state is not State.IDLE:
            log.info(bound.state.value, address=self.address)
        if bound.state is State.UNREAD:
            self.transport.abort()
        elif (bound.state is State.HEAD and not self._is_silent) or (
            bound.state is State.BODY and not self.cycle.response_started
        ):
            self._refuse(reply)
        else:
            self._close()

    def _refuse(self, reply: bytes) -> None:
        """Read no more requests, and close the connection after a reply that tells why.

        While earlier requests are still being answered, the given reply is not sent: the client would take it for one
        of theirs.
        """
        self._is_refused = True
        cycle = self.cycle
        is_answered = cycle is None or cycle.response_complete
        if self.pipeline or not (is_answered or cycle.more_body):
            cycle.keep_alive = False
            if cycle.more_body:  # behind requests that are being answered: nobody could be told what became of which
                self.transport.abort()
            return
        if not is_answered:
            self._leave()
        if cycle is None or not cycle.more_body or not cycle.response_started:
            self.transport.write(reply)
        if self.transport.can_write_eof() and not self.transport.is_closing():
            self.transport.write_eof()
        self.loop.call_later(LINGER_S, self._close)

    def _leave(self) -> None:
        """Tell the running request that its client has left."""
        self.cycle.disconnected = True
        self.cycle.message_event.set()
        call = self.cycle.scope["state"].get("call")
        if call is not None:  # else the application has yet to begin, and hears of it where it reads the body
            call.leave()

    def _end(self) -> None:
        """Close after the last reply. If a body is still coming, its bytes are dropped until the body's bound.

        Closed with unread bytes, a connection is reset, and the client may lose the reply (RFC 9112, 9.6).
        """
        if self.cycle.more_body and not self.transport.is_closing() and self.transport.can_write_eof():
            self._is_ending = self._is_refused = True
            self.pipeline.clear()
            self.transport.write_eof()
            self._apply_bound()
        else:
            self._close()

    def _close(self) -> None:
        self.transport.close()
        self._apply_bound()

    # Events of uvicorn's protocol.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count a new connection; if it is beyond the cap, answer and close it."""
        super().connection_made(transport)
        self._last_writes = LastWrites(transport, self._end)
        transport.set_write_buffer_limits(high=MAX_BUFFERED_BYTES)
        sock = transport.get_extra_info("socket")
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_UNSENT_BYTES)
        is_full = self._cap.is_full
        self._is_counted = not is_full and self._cap.enter(self.address)
        if not self._is_counted:
            transport.write(FULL if is_full else TOO_MANY)
            transport.close()
        self._apply_bound()

    def connection_lost(self, exc: Exception | None) -> None:
        """Subtract the connection from the count, and tell its running request that the client has left.

        exc: None where the connection was closed in order.
        """
        super().connection_lost(exc)
        self._bounds = {}
        self._watch.stop()
        if self._is_counted:
            self._cap.leave(self.address)
        if self.cycle is not None and not self.cycle.response_complete:
            self._leave()

    def data_received(self, data: bytes) -> None:
        """Parse bytes, unless the client is refused already."""
        if not self._is_refused:
            self._is_silent = False
            body_of = self._with_body()
            try:
                self._parse(data)
            except httptools.HttpParserError:
                self.send_400_response("")
            if body_of is None or body_of is not self._with_body():
                self._excess.begin()
            elif self._excess.is_too_much(len(data)):
                self.send_400_response("")
        self._apply_bound(len(data))

    def _with_body(self) -> RequestResponseCycle | None:
        """Return the request whose body is coming; None while none is."""
        return self.cycle if self.cycle is not None and self.cycle.more_body else None

    def _parse(self, data: bytes) -> None:
        """Parse bytes. A request that offers to speak another protocol is read as one that does not.

        An offer behind a request without a reply is refused: another parser for each of many would be much work.

        Raises HttpParserError: when the bytes are no HTTP.
        """
        rest = memoryview(data)
        while rest:
            try:
                self.parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as offered:
                rest = rest[offered.args[0] :]
            method = self.parser.get_method()
            if method == b"CONNECT" or (self.cycle is not None and not self.cycle.response_complete):
                self.send_400_response("")
                return
            head = without_upgrade(method, self.url, self.parser.get_http_version(), self.headers)
            self.parser = parser_for(self)
            self.parser.feed_data(head)

    def on_message_begin(self) -> None:
        """Record that a request has begun."""
        super().on_message_begin()
        self._is_silent = self._is_past_head = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """Record a header. Trailers, which follow a body, are dropped: no proxy has checked them."""
        if not self._is_past_head:
            super().on_header(name, value)

    def on_chunk_header(self) -> None:
        """Count a chunk for the bound on the bytes of framing."""
        self._excess.chunk()

    def on_body(self, body: bytes) -> None:
        """Take bytes of a request's content."""
        self._excess.content(len(body))
        super().on_body(body)

    def on_headers_complete(self) -> None:
        """Begin a request, unless its head is refused or offers another protocol."""
        self._is_past_head = True
        if self.parser.should_upgrade():
            return
        refusal = refusal_of_head(self.url, self.headers, self.parser.get_http_version())
        if refusal is not None:
            self._refuse(refusal)
            raise HeadRefused
        super().on_headers_complete()
        self.cycle.transport = self._last_writes  # type: ignore[assignment]  # all that a reply asks of one
        if self._is_stopping:
            self.cycle.keep_alive = False

    def on_message_complete(self) -> None:
        """Record the end of a request's body, also of a request that was answered before."""
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        if self.cycle.response_complete:
            self.cycle.more_body = False  # which uvicorn leaves open for a request that was answered before
            self._is_silent = True

    def on_response_complete(self) -> None:
        """Record the end of a reply, of which bytes may still wait in the write buffer, and begin the next request.

        In uvicorn's place, which would set a timer for each idle connection: `State.IDLE` has a bound.
        """
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.pipeline:
                self._start_asgi_task(*self.pipeline.pop())
        self._is_silent = True
        self._apply_bound()

    def send_400_response(self, msg: str) -> None:
        """Reply to bytes that are not HTTP, unless they are refused already.

        msg: uvicorn's text, which no client sees.
        """
        if not self._is_refused:
            self._refuse(NO_HTTP)

    def pause_writing(self) -> None:
        """Record that the write buffer is full."""
        super().pause_writing()
        self._apply_bound()

    def resume_writing(self) -> None:
        """Record that the write buffer has room again."""
        super().resume_writing()
        self._apply_bound()

    def shutdown(self) -> None:
        """Close an idle connection.

        A new connection stays open for LAST_HEAD_S, since its first request may be on the way, and so does one whose
        next request has begun to come, whether or not it is read yet: a client whose connection closes cannot tell
        whether the request was begun, and so must not repeat it.
        """
        is_idle = self.cycle is None or self.cycle.response_complete
        is_in_head = self._state is not None and self._state[0] is State.HEAD
        if not self._is_stopping and (is_in_head or (is_idle and self._has_unread())):
            self._is_stopping = True
            self.loop.call_later(LAST_HEAD_S, self.shutdown)
        else:
            super().shutdown()

    def _has_unread(self) -> bool:
        """Tell whether bytes of the client, or the end of them, wait in the kernel."""
        connected = self.transport.get_extra_info("socket")
        if connected is None:
            return False
        poll = select.poll()
        poll.register(connected.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        super()._start_asgi_task(cycle, with_fitted_replies(cycle, app))
