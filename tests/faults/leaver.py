"""A client that leaves at some byte: while it asks, while it waits, or in the midst of its reply."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from typing import Literal

import msgspec

from tests.faults.received import Received
from tests.faults.watcher import Listener, request_bytes
from tests.patience import PATIENCE_S

MOST_REPLY_BYTES = 12_000
MOST_WAIT_S = 0.3

How = Literal["fin", "rst", "half"]
"""The way in which a client disconnects: fin and rst read nothing more; half sends a FIN and reads what still comes."""


class Point(msgspec.Struct, frozen=True):
    """The moment of a disconnection: after sending `num_sent` bytes, waiting `wait_s` and receiving `num_received`
    bytes.
    """

    num_sent: int
    wait_s: float
    num_received: int
    how: How


def any_point(rng: random.Random, request: bytes) -> Point:
    how: How = rng.choice(("fin", "rst", "half"))
    where = rng.random()
    if where < 0.25:
        return Point(rng.randrange(len(request)), 0.0, 0, how)
    if where < 0.5:
        return Point(len(request), rng.uniform(0, MOST_WAIT_S), 0, how)
    return Point(len(request), 0.0, rng.randint(1, MOST_REPLY_BYTES), how)


async def leave(port: int, secret: str, body: bytes, rng: random.Random) -> Received:
    """Send a request and disconnect at a random point. Return what the client received by then."""
    listener, request = Listener(), request_bytes(secret, body)
    point = any_point(rng, request)
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(request[: point.num_sent])
                await writer.drain()
                await asyncio.sleep(point.wait_s)
                num_left = point.num_received
                while num_left and (data := await reader.read(min(num_left, 512))):
                    num_left -= len(data)
                    listener.receive(data)
                await _go(writer, reader, listener, point.how)
            finally:
                writer.transport.abort()
    return listener.seen


async def _go(writer: asyncio.StreamWriter, reader: asyncio.StreamReader, listener: Listener, how: How) -> None:
    if how == "rst":
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    elif how == "half":
        writer.write_eof()
        while data := await reader.read(65536):
            listener.receive(data)
