"""A port in front of the gateway that can be shut while the gateway goes on for everybody else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

BAD_GATEWAY = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
CHUNK_BYTES = 65_536


class Door:
    """A TCP proxy in front of the gateway.

    state: "open" passes everything; "shut" refuses connections; "empty" answers 502, as a proxy does whose gateway is
    away.
    """

    def __init__(self, port: int) -> None:
        self._port_behind = port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._is_empty = False
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def set(self, state: Literal["open", "shut", "empty"]) -> None:
        """Change the state, and end all connections that are open."""
        self._is_empty = state == "empty"
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._writers:
            writer.transport.abort()
        if state != "shut":
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_empty:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(BAD_GATEWAY)
            writer.close()
            return
        behind = await asyncio.open_connection("127.0.0.1", self._port_behind)
        both = {writer, behind[1]}
        self._writers |= both
        try:
            await asyncio.gather(pump(reader, behind[1]), pump(behind[0], writer))
        except OSError:
            pass
        finally:
            self._writers -= both
            for each in both:
                each.transport.abort()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


@asynccontextmanager
async def door_to(port: int) -> AsyncIterator[Door]:
    door = Door(port)
    await door.set("open")
    try:
        yield door
    finally:
        await door.set("shut")
