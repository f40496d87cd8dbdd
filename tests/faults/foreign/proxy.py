"""A proxy between a gateway and a server that spoils requests on their way, each in the way that a test chooses.

Passes bytes on as they are, one request at a time over each connection. Questions about the server's health pass as
requests do, unless a test says otherwise.
"""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Literal

import msgspec

from tests.gateway.backends.foreign.fake import HEAD, chunk, delta, event

Fault = Literal[
    "latency",
    "reset",
    "reset in the midst",
    "wrong length",
    "gzip bomb",
    "endless stream",
    "error inside a 200",
    "error after text",
    "status 500",
    "status 503",
    "slow body",
    "lying usage",
]

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
STUCK_S = 600.0
BOMB = gzip.compress(b"data: " + b"a" * (16 << 20))
"""A small gzip body that decompresses to 16 MiB. It is compressed once, since compression blocks the loop."""
_TOKENS = re.compile(rb'"completion_tokens": *\d+')


class ProxiedRequest(msgspec.Struct, frozen=True):
    """One request for a generation that went through the proxy."""

    id: str
    fault: Fault | None
    at_s: float
    """The time at which the request came, by the loop's clock."""


class FaultProxy:
    """A proxy at a port of this machine in front of one server."""

    def __init__(self, server_port: int) -> None:
        self.choose: Callable[[str], Fault | None] = lambda request_id: None
        """The function that returns the fault of a request by its id."""
        self.delay_s: Callable[[str], float] = lambda request_id: 0.0
        """The function that returns the time that a request by its id waits before it goes on."""
        self.pace_s = 0.0
        """The time that each piece of a reply waits."""
        self.is_away = False
        """True if the proxy closes connections at once, questions about health included."""
        self.passed: list[ProxiedRequest] = []
        self.port = 0
        self._server_port = server_port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while not (self.is_away or writer.is_closing()):
                request = await _read_request(reader)
                if not self.is_away:
                    await self._pass_on(request, writer)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, OSError):
            pass
        finally:
            self._tasks.discard(task)
            with suppress(OSError):
                writer.close()

    async def _pass_on(self, request: bytes, writer: asyncio.StreamWriter) -> None:
        fault = None
        if request.startswith(b"POST"):
            found = re.search(rb"x-request-id: (\S+)\r\n", request)
            request_id = found[1].decode() if found else ""
            fault = self.choose(request_id)
            self.passed.append(ProxiedRequest(request_id, fault, asyncio.get_running_loop().time()))
            await asyncio.sleep(self.delay_s(request_id))
        if fault is None or fault in ("reset in the midst", "slow body", "lying usage"):
            await self._piped(request, writer, fault)
        else:
            await _answer_faulty(fault, writer)

    async def _piped(self, request: bytes, writer: asyncio.StreamWriter, fault: Fault | None) -> None:
        """Forward a request to the server over a connection of its own, and the reply to the client.

        fault: the fault to cause on the way; None: there is none.
        """
        reader, upstream = await asyncio.open_connection("127.0.0.1", self._server_port)
        try:
            upstream.write(request)
            rest = b""
            while data := await reader.read(4096):
                rest = (rest + data)[-8:]
                if fault == "lying usage":
                    data = _TOKENS.sub(lambda found: b'"completion_tokens":' + b"9" * (len(found[0]) - 20), data)
                if fault == "reset in the midst" and b"data:" in data:
                    writer.write(data[: data.index(b"data:") + 40])
                    await writer.drain()
                    writer.transport.abort()
                    return
                if fault == "slow body":
                    await _trickle(data, writer)
                else:
                    writer.write(data)
                    await writer.drain()
                await asyncio.sleep(self.pace_s)
                if rest.endswith(b"0\r\n\r\n") or (request.startswith(b"GET") and not rest.endswith(b"\r\n")):
                    return  # the fakes end streams by an empty chunk, and send whole replies in one piece
        finally:
            upstream.close()


async def _answer_faulty(fault: Fault, writer: asyncio.StreamWriter) -> None:
    """Answer a request with a faulty reply in place of the server."""
    match fault:
        case "latency":
            await asyncio.sleep(STUCK_S)
        case "reset":
            writer.transport.abort()
        case "wrong length":
            writer.write(STREAM + b"content-length: 99999\r\n\r\ndata: {}\n\n")
            await writer.drain()
            writer.close()
        case "gzip bomb":
            writer.write(STREAM + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(BOMB) + BOMB)
            await writer.drain()
        case "endless stream":
            writer.write(HEAD)
            while not writer.is_closing():
                writer.write(chunk(b": and on\n\n" * 400))
                await writer.drain()
        case "error inside a 200":
            writer.write(HEAD + event({"error": {"message": "CUDA error", "code": 500}}))
            await writer.drain()
            writer.close()
        case "error after text":
            writer.write(HEAD + event(delta("Hel")) + event({"error": {"message": "CUDA error", "code": 500}}))
            await writer.drain()
            writer.close()
        case "status 500" | "status 503":
            body = b'{"error":{"message":"no"}}'
            status = fault.removeprefix("status ").encode()
            writer.write(b"HTTP/1.1 %s No\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body))
            await writer.drain()


async def _trickle(data: bytes, writer: asyncio.StreamWriter) -> None:
    for at in range(0, len(data), 16):
        writer.write(data[at : at + 16])
        await writer.drain()
        await asyncio.sleep(0.2)


async def _read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    found = re.search(rb"content-length: (\d+)\r\n", head)
    return head + (await reader.readexactly(int(found[1])) if found else b"")


@asynccontextmanager
async def fault_proxy(server_port: int) -> AsyncIterator[FaultProxy]:
    proxy = FaultProxy(server_port)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
