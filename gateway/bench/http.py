"""A client that costs next to nothing: prepared bytes over kept connections, one request at a time on each.

For measuring servers at rates at which a full client would be what is measured. Understands replies with a
content-length, and no others.
"""

from __future__ import annotations

import asyncio
from typing import cast

HEAD_END = b"\r\n\r\n"
CONTENT_LENGTH = b"content-length: "


class Connection(asyncio.Protocol):
    """One connection; `ask` must not be called again before it has returned."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._length: int | None = None
        self._reply: asyncio.Future[int] | None = None

    async def ask(self, request: bytes) -> int:
        """Send it; returns the status of the reply once all of it is here. Raises ConnectionError."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("the connection is closed")
        self._reply = asyncio.get_running_loop().create_future()
        self._received.clear()
        self._length = None
        self._transport.write(request)
        return await self._reply

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none of its classes

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._length is None:
            end = self._received.find(HEAD_END)
            if end < 0:
                return
            head = bytes(self._received[:end]).lower() + b"\r\n"
            start = head.find(CONTENT_LENGTH) + len(CONTENT_LENGTH)
            self._length = end + len(HEAD_END) + int(head[start : head.index(b"\r\n", start)])
        if len(self._received) >= self._length and self._reply is not None and not self._reply.done():
            self._reply.set_result(int(self._received[9:12]))

    def connection_lost(self, error: Exception | None) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(ConnectionResetError("the server closed the connection"))


async def connect(host: str, port: int) -> Connection:
    _, connection = await asyncio.get_running_loop().create_connection(Connection, host, port)
    return connection


def post(path: str, key: str, body: bytes) -> bytes:
    """The bytes of a request."""
    head = f"POST {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
