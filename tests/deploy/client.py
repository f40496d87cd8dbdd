"""Clients that keep their connections, over TLS or without, all in one thread that costs little, since it shares the
machine with what it measures.

Replies are only collected while the load runs, up to their ends. They are read afterwards, each byte of them.
"""

from __future__ import annotations

import json
import os
import re
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable

import msgspec

from tests.faults.received import Received
from tests.faults.watcher import Listener

_ANY_CERTIFICATE = ssl.create_default_context()
_ANY_CERTIFICATE.check_hostname = False
_ANY_CERTIFICATE.verify_mode = ssl.CERT_NONE

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n")
_AGAIN = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_END = b"\r\n0\r\n\r\n"
"""The last bytes of a reply in chunks. No chunk of ours contains these bytes, since JSON writes no raw line end."""


class Outcome(msgspec.Struct, kw_only=True):
    """The outcome of one request."""

    seen: Received
    wanted: int
    """The number of tokens asked for."""
    error: str = ""
    """The reason why the request ended early, in words."""
    began_s: float = 0.0
    spread_s: float = 0.0
    """The seconds from the first piece of the reply to the last one."""

    @property
    def is_whole(self) -> bool:
        return (
            not self.error and self.seen.status == 200 and self.seen.has_ended and self.seen.num_tokens == self.wanted
        )


class Exchange:
    """A request, and the bytes of its reply so far.

    on_end: called once the exchange is over, whether it failed or not.
    """

    def __init__(self, request: bytes, wanted: int, on_end: Callable[[], None] | None = None) -> None:
        self.request = request
        self.wanted = wanted
        self.on_end = on_end
        self.error = ""
        self.is_kept = True
        """True as long as no head of a reply has announced that the server closes the connection."""
        self.began_s = time.monotonic()
        self.first_s = self.last_s = 0.0
        self.reply = bytearray()
        self._length = 0
        """The bytes of the whole reply; 0 where its head has not come, or it comes in chunks."""
        self._is_chunked = False

    def receive(self, data: bytes) -> bool:
        """Take more bytes of the reply. Return whether it is complete.

        Raises ValueError: when the reply has no length, or bytes follow it.
        """
        self.last_s = time.monotonic()
        self.first_s = self.first_s or self.last_s
        self.reply += data
        if not (self._length or self._is_chunked) and (end := self.reply.find(b"\r\n\r\n")) >= 0:
            head = bytes(self.reply[: end + 2]).lower()
            self.is_kept = b"\r\nconnection: close\r\n" not in head
            self._is_chunked = b"\r\ntransfer-encoding: chunked\r\n" in head
            found = _LENGTH.search(head)
            if not self._is_chunked and found is None:
                raise ValueError(f"a reply without a length: {head!r}")
            self._length = 0 if found is None else end + 4 + int(found[1])
        if self._is_chunked:
            return self.reply.endswith(_END)
        if self._length and len(self.reply) > self._length:
            raise ValueError("bytes follow a reply")
        return len(self.reply) == self._length > 0

    def outcome(self) -> Outcome:
        """Return the outcome of the request, from all bytes of the reply."""
        listener = Listener()
        outcome = Outcome(seen=listener.seen, wanted=self.wanted, error=self.error, began_s=self.began_s)
        if self.first_s:
            outcome.spread_s = self.last_s - self.first_s
        head, _, rest = bytes(self.reply).partition(b"\r\n\r\n")
        listener.receive(head + b"\r\n\r\n")
        try:
            body = _of_chunks(rest) if self._is_chunked else rest
            if outcome.seen.status != 200:
                outcome.error = outcome.error or f"status {outcome.seen.status}: {body[:200]!r}"
            elif self._is_chunked:
                listener.receive(body)
            elif not self.error:
                _take_whole(outcome.seen, body)
        except ValueError as error:
            outcome.error = outcome.error or f"not to be read: {error!r}"
        return outcome


def _of_chunks(rest: bytes) -> bytes:
    """Return the content of a chunked reply, as far as it arrived."""
    chunks, at = [], 0
    while (end := rest.find(b"\r\n", at)) >= 0 and (size := int(rest[at:end].split(b";")[0], 16)):
        chunks.append(rest[end + 2 : end + 2 + size])
        at = end + 2 + size + 2
    return b"".join(chunks)


def _take_whole(seen: Received, body: bytes) -> None:
    reply = json.loads(body)
    seen.num_tokens = sum(len(choice["text"]) for choice in reply["choices"])
    seen.usage = reply["usage"]
    seen.has_ended = True


class _Connection:
    """A connection that has at most one exchange at a time. No method blocks.

    Raises OSError: when there is no socket for it.
    """

    def __init__(self, port: int, *, tls: bool) -> None:
        self._socket: socket.socket | ssl.SSLSocket = socket.socket()
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.connect_ex(("127.0.0.1", port))  # its error, if any, is asked for later
        self._tls = tls
        self._is_connected = self._is_sent = False
        self.fd = self._socket.fileno()
        self.exchange: Exchange | None = None
        self.watched = 0
        """The events for which the client's epoll watches the connection."""

    @property
    def events(self) -> int:
        """The events of the socket to wait for before the next `advance`."""
        is_shaking = isinstance(self._socket, ssl.SSLSocket)
        return select.EPOLLIN if self._is_sent or is_shaking else select.EPOLLOUT

    def begin(self, exchange: Exchange) -> None:
        """Set the exchange that the next `advance` sends."""
        self.exchange, self._is_sent = exchange, False

    def is_open(self) -> bool:
        """Tell whether an idle connection is still open, without unexpected bytes from the server."""
        try:
            self._socket.recv(1)
        except _AGAIN:
            return True
        except OSError:
            pass
        return False

    def advance(self) -> bool:
        """Send and receive as far as possible now. Return whether the exchange is over without an error.

        Raises OSError: when the connection cannot be made, or is cut off.
        Raises ValueError: when the reply cannot be read.
        """
        assert self.exchange is not None
        try:
            self._send(self.exchange.request)
            while data := self._socket.recv(65536):
                if self.exchange.receive(data):
                    return True
        except _AGAIN:
            return False
        raise ConnectionResetError(f"closed after {len(self.exchange.reply)} bytes")

    def close(self) -> None:
        self._socket.close()

    def _send(self, request: bytes) -> None:
        if self._is_sent:
            return
        if not self._is_connected:
            self._open()
        sent = self._socket.send(request)
        assert sent == len(request), "a request is shorter than a socket's buffer"
        self._is_sent = True

    def _open(self) -> None:
        """Continue to connect.

        Raises BlockingIOError, ssl.SSLWantReadError: when it has to wait.
        """
        failed = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if failed:
            raise OSError(failed, f"no connection: {os.strerror(failed)}")
        if self._tls:
            if not isinstance(self._socket, ssl.SSLSocket):
                self._socket = _ANY_CERTIFICATE.wrap_socket(self._socket, do_handshake_on_connect=False)
            self._socket.do_handshake()
        self._is_connected = True


class Client:
    """A client of one port, for a thread.

    A connection that was closed while idle is replaced; a request that was sent is never sent again.
    """

    def __init__(self, port: int, *, tls: bool) -> None:
        self._port = port
        self._tls = tls
        self._epoll = select.epoll()
        self._busy: dict[int, _Connection] = {}
        self._idle: deque[_Connection] = deque()
        """Idle connections, the one used longest ago first, so that each is used, and learns in time that a server
        ends."""
        self.num_opened = 0
        self.ended: list[Exchange] = []

    @property
    def num_running(self) -> int:
        """The number of exchanges that are not over."""
        return len(self._busy)

    def begin(self, exchange: Exchange) -> None:
        """Start an exchange, over an idle connection where there is one."""
        connection = self._connection()
        connection.begin(exchange)
        self._busy[connection.fd] = connection
        connection.watched = select.EPOLLOUT
        self._epoll.register(connection.fd, connection.watched)

    def advance(self, wait_s: float) -> None:
        """Wait at most `wait_s` for bytes, and process them."""
        for fd, _ in self._epoll.poll(wait_s):
            self._advance(self._busy[fd])

    def close(self) -> None:
        """Close all connections."""
        for connection in self._busy.values():
            connection.close()
        for connection in self._idle:
            connection.close()
        self._epoll.close()

    def _advance(self, connection: _Connection) -> None:
        exchange = connection.exchange
        assert exchange is not None
        try:
            if not connection.advance():
                if connection.events != connection.watched:
                    connection.watched = connection.events
                    self._epoll.modify(connection.fd, connection.watched)
                return
        except (OSError, ValueError) as error:
            exchange.error = f"cut off: {error!r}"
        self._epoll.unregister(connection.fd)
        del self._busy[connection.fd]
        if exchange.error or not exchange.is_kept:
            connection.close()
        else:
            self._idle.append(connection)
        self.ended.append(exchange)
        if exchange.on_end is not None:
            exchange.on_end()

    def _connection(self) -> _Connection:
        while self._idle:
            connection = self._idle.popleft()
            if connection.is_open():
                return connection
            connection.close()
        self.num_opened += 1
        return _Connection(self._port, tls=self._tls)
