"""One HTTP/1.1 connection to a server that is not trusted: one request at a time, all received bytes bounded.

The parser is httptools', in C. Knows nothing of what is asked, and nothing of other connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping
from typing import cast

import httptools

MAX_HEAD_BYTES = 64 << 10
"""Bytes of a response before its body."""

MAX_HEADERS = 128

MAX_UNREAD_BYTES = 256 << 10
"""Bytes of a body that wait for their reader before the server is no longer read from."""

MAX_FRAMING_BYTES = 128 << 10
"""Bytes of a response beside its body: the head, and the sizes and extensions of chunks. The bound grows by one with
each byte of the body.
"""

FED_BYTES = 64 << 10
"""Bytes that are parsed between two checks of the bounds."""

READ_BYTES = 16 << 10
"""Bytes of a body that are read at once, so that other readers get their turns."""

UNREAD_FOR_S = 5.0
"""Seconds for which more than MAX_UNREAD_BYTES may be unread before the response is given up."""


class ServerGone(Exception):
    """The error for a connection that could not be opened, was lost, timed out or is no HTTP.

    The message is for operators alone.

    has_begun: True: the reply had begun. was_lost: True: the connection was lost after the request was sent.
    """

    def __init__(self, why: str, *, has_begun: bool = False, was_lost: bool = False) -> None:
        super().__init__(why)
        self.has_begun = has_begun
        """True if a byte of a response had come."""
        self.was_lost = was_lost
        """True if the connection was there and the server's side, or the network, ended it."""


class ServerChanged(ServerGone):
    """The error for a connection that leads to another server process than the one whose condition is known."""


class ReaderTooSlow(ServerGone):
    """The error for a connection that was closed because its reader left too much unread for too long.

    The error says nothing about the server.
    """


class Connection(asyncio.Protocol):
    """A connection to one server, from `connection_made` to `close`."""

    def __init__(self, lost: Callable[[Connection], None], unread_s: float = UNREAD_FOR_S) -> None:
        """Prepare a connection that `connection_made` opens.

        lost: called when the connection is gone.
        unread_s: seconds for which more than MAX_UNREAD_BYTES may be unread before the response is given up.
        """
        self.status = 0
        """The status of the present response; 0 before its head has come."""
        self.headers: dict[str, str] = {}
        """The headers of the present response by their names in lower case; of several of one name, the last."""
        self.is_reusable = False
        """True if the connection may take another request."""
        self.was_held_back = False
        """True if the server had to wait in the present response, since what it had sent was not read."""
        self.proved: Hashable = None
        """The proof that the server behind the connection has given; None where nobody has asked for one."""
        self.has_left_over = False
        """True if a part of what came was read, and the rest waits."""
        self.is_inside = False
        """True if the internet does not reach the server's address."""
        self.num_requests = 0
        """Requests that were sent over the connection."""
        self._lost = lost
        self._unread_s = unread_s
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._buffer: list[bytes] = []
        self._num_buffered = 0
        self._num_head_bytes = 0
        self._num_header_bytes = 0
        self._num_bytes = 0
        self._num_body_bytes = 0
        self._has_head = False
        self._is_whole = False
        self._why: ServerGone | None = None
        self._paused: asyncio.TimerHandle | None = None  # while the server is not read from
        self._waiter: asyncio.Future[None] | None = None
        self._came = _any_bytes
        self._until_s = 0.0  # of the present wait
        self._timer: asyncio.TimerHandle | None = None  # one for all waits, which is set again when it is due too early
        self._timer_s = 0.0

    # requests

    def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> None:
        """Send a request. The response to the request before must have been read to its end.

        Raises ServerGone: when the connection is lost already.
        """
        if self._transport is None:
            raise self._why or ServerGone("the connection was lost", was_lost=True)
        if self.num_requests:
            self._parser = httptools.HttpResponseParser(self)
        self.status, self.headers, self.is_reusable, self.was_held_back = 0, {}, False, False
        self._has_head = self._is_whole = self.has_left_over = False
        self._num_head_bytes = self._num_header_bytes = self._num_bytes = self._num_body_bytes = 0
        self.num_requests += 1
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        if body or method == "POST":
            lines.append(f"content-length: {len(body)}")
        self._transport.write("\r\n".join((*lines, "", "")).encode("ascii") + body)

    async def head(self, until_s: float) -> None:
        """Wait for the head of the response, until until_s by the loop's clock.

        Raises ServerGone: when the connection is lost or the head does not come in time.
        """
        while not self._has_head:
            if self._why is not None:
                raise self._why
            await self.wait(until_s)

    async def read(self, until_s: float) -> bytes:
        """Return the bytes of the body that came since the last call, at most READ_BYTES; b"" at the body's end.

        until_s: the time by the loop's clock until which something has to come.

        Raises ServerGone: when the body is cut off, or nothing comes in time.
        """
        if self.has_left_over:
            await asyncio.sleep(0)  # others have their turn
        while (data := self.take()) is None:
            await self.wait(until_s)
        return data

    def take(self) -> bytes | None:
        """Return the bytes of the body that came since the last call, at most READ_BYTES.

        Return b"" at the body's end, and None if nothing has come.

        Raises ServerGone: when the body is cut off.
        """
        if not self._buffer:
            if self._is_whole:
                return b""
            if self._why is not None:
                raise self._why
            return None
        data = self._buffer[0] if len(self._buffer) == 1 else b"".join(self._buffer)
        if len(data) > READ_BYTES:
            self._buffer, self.has_left_over = [data[READ_BYTES:]], True
            self._num_buffered = len(data) - READ_BYTES
            return data[:READ_BYTES]
        self._buffer.clear()
        self.has_left_over, self._num_buffered = False, 0
        if self._paused is not None and self._transport is not None:
            self._paused.cancel()
            self._paused = None
            self._transport.resume_reading()
        return data

    async def wait(self, until_s: float, came: Callable[[], bool] | None = None) -> None:
        """Wait until something has come, the body is cut off, or a time is reached.

        until_s: the time by the loop's clock; reaching it cuts the body off.
        came: called each time something comes; the wait goes on where it returns False.
        """
        loop = asyncio.get_running_loop()
        self._came, self._until_s = came or _any_bytes, until_s
        if self._timer is None or self._timer_s > until_s:
            self._set_timer(loop)
        waiter = self._waiter = loop.create_future()
        try:
            await waiter
        finally:
            self._waiter, self._came = None, _any_bytes  # an idle connection keeps nothing of its last request

    @property
    def is_open(self) -> bool:
        """True while the connection is there, and no side has closed it."""
        return self._transport is not None and not self._transport.is_closing() and self._why is None

    @property
    def is_done(self) -> bool:
        """True once the response has come whole and was read."""
        return self._is_whole and not self._buffer

    def close(self) -> None:
        """Close the connection, even in the middle of a response."""
        self._forget_timer()
        if self._paused is not None:
            self._paused.cancel()
            self._paused = None
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def cut(self, why: str) -> None:
        """Close the connection, and give its reader ServerGone."""
        self._fail(why)

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the timer to the end of the present wait."""
        self._forget_timer()
        self._timer, self._timer_s = loop.call_at(self._until_s, self._is_due), self._until_s

    def _is_due(self) -> None:
        """End a wait that has lasted too long. A timer for each wait would cost more than all else of a read."""
        self._timer, loop = None, asyncio.get_running_loop()
        if self._waiter is None:
            return  # the next wait sets it
        if loop.time() < self._until_s:
            self._set_timer(loop)
        else:
            self._fail("nothing came in time")

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self, num_bytes: int = 0) -> None:
        """Wake the reader. num_bytes: bytes that have just come; a large number is read in a turn of its own."""
        waiter = self._waiter
        if waiter is not None and not waiter.done() and (num_bytes > READ_BYTES or self._came()):
            waiter.set_result(None)

    def _fail(self, why: str) -> None:
        """End the connection with an error; bytes that come later are ignored."""
        if self._why is None:
            self._why = ServerGone(why, has_begun=self._has_begun)
        self.is_reusable = False
        self.close()
        self._wake()

    def _give_up_on_reader(self) -> None:
        self._why = self._why or ReaderTooSlow("its reply is not read", has_begun=True)
        self._fail("its reply is not read")

    # what the transport tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport, as a protocol of asyncio does."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Parse bytes of the response, and stop reading while more of its body is unread than a connection may keep."""
        if self._why is not None:
            return
        if self._is_whole or not self.num_requests:
            self._fail("bytes came that no request asked for")
            return
        if len(data) <= FED_BYTES:
            if not self._feed(data):
                return
        elif not all(self._feed(data[start : start + FED_BYTES]) for start in range(0, len(data), FED_BYTES)):
            return
        if self._num_buffered > MAX_UNREAD_BYTES and not self._is_whole and self._transport is not None:
            self.was_held_back = True
            if self._paused is None:
                self._paused = asyncio.get_running_loop().call_later(self._unread_s, self._give_up_on_reader)
            self._transport.pause_reading()
        self._wake(len(data))

    def _feed(self, data: bytes) -> bool:
        """Parse bytes of a response. Return False if they are more than a response may have, or no HTTP."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(f"its response is no HTTP: {error or type(error).__name__}")
            return False
        if not self._has_head:
            self._num_head_bytes += len(data)
            if self._num_head_bytes > MAX_HEAD_BYTES:
                self._fail("the head of its response is too large")
                return False
        self._num_bytes += len(data)
        if self._num_bytes > MAX_FRAMING_BYTES + 2 * self._num_body_bytes:
            self._fail("its response has too much beside its body")
            return False
        return True

    def eof_received(self) -> bool:
        """Return False: asyncio closes the transport, and `connection_lost` follows."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """End the response: whole if it lasts until the connection ends, else lost, with the reason why.

        error: None where the server closed the connection in order.
        """
        self._transport = None
        self._forget_timer()
        if self._why is None and error is None and self._has_head and self._is_until_end:
            self._is_whole = True  # unless this side ended it, such as when nothing came in time
        if self._why is None and not self._is_whole:
            kind = ReaderTooSlow if self.was_held_back else ServerGone  # one that has to wait may give up
            self._why = kind("the connection was lost", has_begun=self._has_begun, was_lost=True)
        self.is_reusable = False
        self._wake()
        self._lost(self)

    @property
    def _has_begun(self) -> bool:
        return self._has_head or self._num_head_bytes > 0

    @property
    def _is_until_end(self) -> bool:
        return "content-length" not in self.headers and "transfer-encoding" not in self.headers

    # what the parser tells

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a field of the response's head.

        Raises ValueError: when the fields are too many or too long.
        """
        self._num_header_bytes += len(name) + len(value)
        if len(self.headers) >= MAX_HEADERS or self._num_header_bytes > MAX_HEAD_BYTES:
            raise ValueError("the head of its response is too large")
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """Store the status of the response.

        Raises ValueError: for an interim response, which no request asks for.
        """
        self.status = self._parser.get_status_code()
        if self.status < 200:
            raise ValueError("its response has a status that was not asked for")
        self._has_head = True

    def on_body(self, body: bytes) -> None:
        """Store bytes of the body until they are read."""
        self._buffer.append(body)
        self._num_buffered += len(body)
        self._num_body_bytes += len(body)

    def on_message_complete(self) -> None:
        """Record that the response is whole, and whether the connection takes another request."""
        self._is_whole = True
        self.is_reusable = bool(self._parser.should_keep_alive())


def _any_bytes() -> bool:
    """Return True: whatever has come ends a wait."""
    return True
