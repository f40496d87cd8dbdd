"""A proxy for one server: it lets a library reach the server at the checked address, and nothing else.

A library that follows redirects and looks names up by itself goes wherever a stranger's server sends it. Behind this
proxy (RFC 9110, section 9.3.6, CONNECT) it cannot: TLS is between the library and the server whose name it verifies,
and a connection to any other host or port is refused. Knows nothing of the transferred data.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

HEAD_S = 10.0
MAX_HEAD_BYTES = 16 << 10
CHUNK_BYTES = 64 << 10

_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_FORBIDDEN = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_UNREACHABLE = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"

log = structlog.get_logger(__name__)


@asynccontextmanager
async def tunnel(host: str, port: int, address: str) -> AsyncIterator[str]:
    """Give the URL of a proxy on the loopback that connects to host:port alone, at this address.

    The proxy lives until the context is left.
    """
    relays: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        relays.add(task)
        try:
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                await _serve_connection(reader, writer, f"{host}:{port}", address, port)
        finally:
            relays.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=MAX_HEAD_BYTES)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for relay in list(relays):
            relay.cancel()
        await asyncio.gather(*relays, return_exceptions=True)


async def _serve_connection(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, allowed: str, address: str, port: int
) -> None:
    async with asyncio.timeout(HEAD_S):
        head = await reader.readuntil(b"\r\n\r\n")
    method, target, *_ = [*head.decode("latin-1").partition("\r\n")[0].split(" "), "", ""]
    if method != "CONNECT" or target.lower() != allowed.lower():
        log.warning("tunnel_refused", wanted=target[:200], allowed=allowed)
        writer.write(_FORBIDDEN)
        await writer.drain()
        return
    try:
        async with asyncio.timeout(HEAD_S):
            far_reader, far_writer = await asyncio.open_connection(address, port)
    except (OSError, TimeoutError):
        writer.write(_UNREACHABLE)
        await writer.drain()
        return
    try:
        writer.write(_ESTABLISHED)
        await writer.drain()
        there = asyncio.create_task(_copy(reader, far_writer))
        back = asyncio.create_task(_copy(far_reader, writer))
        try:
            await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
        finally:
            there.cancel()
            back.cancel()
            await asyncio.gather(there, back, return_exceptions=True)
    finally:
        far_writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
