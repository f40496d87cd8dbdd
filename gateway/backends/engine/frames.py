"""A ZeroMQ socket in the event loop, which sends at once or not at all and reads all waiting messages together.

pyzmq's own asyncio sockets make a future and walk through the loop for every message; under load that is a tenth of a
request. ZeroMQ's descriptor shows changes only (zmq_getsockopt(3), ZMQ_FD), and every call may consume one, so each
call is followed by a look at the socket, which wakes the reader.
"""

from __future__ import annotations

import asyncio
from typing import cast

import zmq

MAX_AT_ONCE = 256
"""The most messages that are read at once; the rest is read after other tasks have had their turn."""


_READABLE = int(zmq.POLLIN)


class Frames:
    """Reads and writes a ZeroMQ socket, which its owner closes after `stop`. One task at a time may call `take`."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._came: list[bytes] = []  # read for the waiter, which has yet to run
        self._is_full = False
        self._loop.add_reader(socket.FD, self._poll)

    def stop(self) -> None:
        """Stop watching the socket, before it is closed."""
        self._loop.remove_reader(self._socket.FD)

    def send(self, frame: bytes) -> None:
        """Send a message without waiting.

        Raises zmq.Again: when the high-water mark is reached.
        Raises zmq.ZMQError: when the socket fails.
        """
        self._socket.send(frame, zmq.NOBLOCK)
        self._poll()

    async def take(self) -> list[bytes]:
        """Return all messages that have come, in order; wait for the first.

        Raises zmq.ZMQError: when the socket fails.
        """
        if self._is_full:
            await asyncio.sleep(0)
        while not (frames := self._came or self._drain()):
            self._waiter = self._loop.create_future()
            await self._waiter
        self._came = []
        return frames

    def _drain(self) -> list[bytes]:
        frames: list[bytes] = []
        while len(frames) < MAX_AT_ONCE and self._is_readable():
            frames.append(self._socket.recv(zmq.NOBLOCK))
        self._is_full = len(frames) == MAX_AT_ONCE
        return frames

    def _poll(self) -> None:
        if self._waiter is None or self._waiter.done():
            return  # nobody waits: the next call of `take` reads first
        self._came = self._drain()
        if self._came:
            self._waiter.set_result(None)

    def _is_readable(self) -> bool:
        """Tell whether a message waits.

        This takes half the time of a receive that raises, or of reading the option by its name.
        """
        return bool(cast("int", self._socket.get(zmq.EVENTS)) & _READABLE)
