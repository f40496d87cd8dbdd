"""A streaming client that remembers every token it saw, wherever its stream was cut."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import threading
from typing import Any

import msgspec

from tests.faults.received import Received
from tests.faults.site import Site
from tests.gateway.live import BASE
from tests.patience import PATIENCE_S

PROMPT = "zqxjkvwy"
"""A prompt of letters that the tokenizer never merges, so that each token is one letter."""

_EVENT = re.compile(rb"data: (\{.*?\})\n\n")
_REQUEST_ID = re.compile(rb"\r\nx-request-id: (\S+)\r\n", re.IGNORECASE)


def request_bytes(secret: str, body: bytes) -> bytes:
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {secret}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class Listener:
    """A parser of replies that takes bytes, streamed or whole, as they come."""

    def __init__(self) -> None:
        self.seen = Received()
        self._received, self._position = b"", 0

    def receive(self, data: bytes) -> None:
        self._received += data
        if not self.seen.request_id and (found := _REQUEST_ID.search(self._received)):
            self.seen.request_id = found[1].decode()
            self.seen.status = int(self._received.split()[1])
        for event in _EVENT.finditer(self._received, self._position):
            self._position = event.end()
            self._take(json.loads(event[1]))
        self.seen.has_ended = b"data: [DONE]\n\n" in self._received[self._position :]

    def _take(self, event: dict[str, Any]) -> None:
        if "error" in event:
            self.seen.has_failed = True
            return
        self.seen.num_tokens += sum(len(choice["text"]) for choice in event["choices"])
        self.seen.usage = event.get("usage") or self.seen.usage


class Watcher:
    """One streaming request over a connection of its own.

    The client disconnects after `leave_after` tokens, or with the next bytes after any thread has set `leave`. secret:
    the secret of an API key; None: the site's own key.
    """

    def __init__(self, site: Site, gateway: int, *, secret: str | None = None, **fields: Any) -> None:
        self.leave = threading.Event()
        self._listener = Listener()
        self.seen = self._listener.seen
        site.seen.append(self.seen)
        body = {"model": BASE, "prompt": PROMPT, "ignore_eos": True, "stream": True, "max_tokens": 40, **fields}
        self._request = request_bytes(secret or site.key.secret, msgspec.json.encode(body))
        self._port = site.gateways[gateway].port
        self._changed = asyncio.Event()
        self._is_over = False
        self._left = asyncio.Event()

    async def run(self, leave_after: int | None = None) -> Received:
        """Send the request; return the received part once the stream has ended, was cut, or the client has left.

        leave_after: the number of events after which the client leaves; None: it stays.
        """
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                try:
                    writer.write(self._request)
                    await self._read(reader, leave_after)
                finally:
                    writer.transport.abort()
        self._is_over = True
        self._changed.set()
        return self.seen

    async def until_seen(self, num_tokens: int) -> None:
        """Wait until the client has received `num_tokens` tokens.

        Raises AssertionError: when the stream ended before.
        """
        async with asyncio.timeout(PATIENCE_S):
            while self.seen.num_tokens < num_tokens:
                assert not self._is_over, f"of {num_tokens} tokens came {self.seen}"
                self._changed.clear()
                await self._changed.wait()

    async def _read(self, reader: asyncio.StreamReader, leave_after: int | None) -> None:
        while data := await reader.read(65536):
            self._listener.receive(data)
            self._changed.set()
            if self.leave.is_set() or (leave_after is not None and self.seen.num_tokens >= leave_after):
                return
