"""A client that keeps its connections, over TLS or without, and costs little, since it shares the machine with what
it measures."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Callable

import msgspec

from tests.faults.seen import Seen
from tests.faults.watcher import Listener

_ANY_CERTIFICATE = ssl.create_default_context()
_ANY_CERTIFICATE.check_hostname = False
_ANY_CERTIFICATE.verify_mode = ssl.CERT_NONE

Hear = Callable[[bytes], None]


class Outcome(msgspec.Struct, kw_only=True):
    """The outcome of one request.

    wanted: the number of tokens asked for.
    error: what ended the request early, in words.
    spread_s: the seconds from the first piece of the reply to the last one.
    """

    seen: Seen
    wanted: int
    error: str = ""
    began_s: float = 0.0
    spread_s: float = 0.0

    @property
    def is_whole(self) -> bool:
        return (
            not self.error and self.seen.status == 200 and self.seen.has_ended and self.seen.num_tokens == self.wanted
        )


class Client:
    """A client of one port.

    A connection that was closed while idle is replaced; a request that was sent is never sent again.
    """

    def __init__(self, port: int, *, tls: bool) -> None:
        self._port = port
        self._tls = _ANY_CERTIFICATE if tls else None
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.num_opened = 0

    async def ask(self, request: bytes, wanted: int, *, stream: bool) -> Outcome:
        """Send a request for completions and return its outcome. Errors of the network are part of the outcome."""
        listener = Listener()
        outcome = Outcome(seen=listener.seen, wanted=wanted, began_s=time.monotonic())
        try:
            reader, writer = await self._connection()
        except OSError as error:
            outcome.error = f"no connection: {error}"
            return outcome
        try:
            writer.write(request)
            body = bytearray()
            first_s = 0.0

            def hear(data: bytes) -> None:
                nonlocal first_s
                first_s = first_s or time.monotonic()
                (listener.hear if stream else body.extend)(data)

            is_kept = await _reply(reader, listener.hear, hear)
            outcome.spread_s = time.monotonic() - first_s
            if not stream:
                _take_whole(outcome.seen, bytes(body))
        except (OSError, EOFError, ValueError) as error:
            outcome.error = f"cut off: {error!r}"
            writer.transport.abort()
            return outcome
        if outcome.seen.status != 200:
            outcome.error = f"status {outcome.seen.status}: {bytes(body[:200])!r}"
        if is_kept:
            self._idle.append((reader, writer))
        else:
            writer.close()
        return outcome

    def close(self) -> None:
        for _, writer in self._idle:
            writer.transport.abort()

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.transport.abort()
        self.num_opened += 1
        return await asyncio.open_connection("127.0.0.1", self._port, ssl=self._tls)


async def _reply(reader: asyncio.StreamReader, hear_head: Hear, hear: Hear) -> bool:
    """Read one reply; return whether its connection stays open.

    Raises EOFError: when the reply is not whole.
    """
    head = await reader.readuntil(b"\r\n\r\n")
    hear_head(head)
    fields = dict(line.lower().split(b": ", 1) for line in head.strip().split(b"\r\n")[1:])
    if fields.get(b"transfer-encoding") == b"chunked":
        while size := int((await reader.readline()).split(b";")[0], 16):
            hear((await reader.readexactly(size + 2))[:-2])
        await reader.readexactly(2)
    else:
        hear(await reader.readexactly(int(fields[b"content-length"])))
    return fields.get(b"connection") != b"close"


def _take_whole(seen: Seen, body: bytes) -> None:
    if seen.status != 200:
        return
    reply = json.loads(body)
    seen.num_tokens = sum(len(choice["text"]) for choice in reply["choices"])
    seen.usage = reply["usage"]
    seen.has_ended = True
