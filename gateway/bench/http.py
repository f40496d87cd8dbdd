"""A client that costs next to nothing: prepared bytes over kept connections, one request at a time on each.

For servers at rates at which a full client's own cost would be measured. Understands replies with a content-length, and
chunked ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast

HEAD_END = b"\r\n\r\n"
CONTENT_LENGTH = b"content-length:"
LAST_CHUNK = b"0\r\n\r\n"
CHUNKED = -1


class Connection(asyncio.Protocol):
    """A connection to the server. `ask` must not be called again before it has returned."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._length: int | None = None
        self._head_length = 0
        self._reply: asyncio.Future[int] | None = None

    @property
    def is_closed(self) -> bool:
        """True once the connection can carry no further request."""
        return self._transport is None or self._transport.is_closing()

    async def reopen(self) -> Connection:
        """Open a new connection to the same address.

        Raises OSError: when nobody listens there.
        """
        return await connect(self._host, self._port)

    async def ask(self, request: bytes) -> int:
        """Send a request, wait for the whole reply, and return its status.

        Raises ConnectionError: when the connection is closed.
        """
        if self._transport is None or self.is_closed:
            raise ConnectionResetError("the connection is closed")
        self._reply = asyncio.get_running_loop().create_future()
        self._received.clear()
        self._length = None
        self._transport.write(request)
        return await self._reply

    def close(self) -> None:
        """Close the connection, if it was made."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport, as a protocol of asyncio does."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none of its classes

    def data_received(self, data: bytes) -> None:
        """Gather the reply up to its Content-Length or its last chunk, and hand its status on once it is whole."""
        self._received += data
        if self._length is None:
            end = self._received.find(HEAD_END)
            if end < 0:
                return
            head = bytes(self._received[:end])
            self._head_length = end + len(HEAD_END)
            self._length = CHUNKED if CONTENT_LENGTH not in head.lower() else end + len(HEAD_END) + length_of(head)
        if self._length == CHUNKED:  # the head itself may end with a 0
            whole = len(self._received) > self._head_length and self._received.endswith(LAST_CHUNK)
        else:
            whole = len(self._received) >= self._length
        if whole and self._reply is not None and not self._reply.done():
            self._reply.set_result(int(self._received[9:12]))

    def connection_lost(self, error: Exception | None) -> None:
        """Fail the request that is under way, if there is one.

        error: not read.
        """
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(ConnectionResetError("the server closed the connection"))


def length_of(head: bytes) -> int:
    """Return the content-length that the head of a message names, 0 where the head names none."""
    head = head.lower() + b"\r\n"
    start = head.find(CONTENT_LENGTH)
    return int(head[start + len(CONTENT_LENGTH) : head.index(b"\r\n", start)]) if start >= 0 else 0


async def connect(host: str, port: int) -> Connection:
    """Open a connection."""
    _, connection = await asyncio.get_running_loop().create_connection(lambda: Connection(host, port), host, port)
    return connection


def post(path: str, key: str, body: bytes, headers: Mapping[str, str] | None = None) -> bytes:
    """Return the bytes of a POST request."""
    fields = {"host": "bench", "authorization": f"Bearer {key}", "content-type": "application/json", **(headers or {})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"POST {path} HTTP/1.1\r\n{lines}content-length: {len(body)}\r\n\r\n".encode() + body
