"""Web servers with TLS that misbehave, and a guard that takes one address of the loopback for public."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing, suppress

import trustme

from gateway.support.outbound import Guard, is_public

PUBLIC = "127.0.0.2"
"""The loopback address that counts as public in these tests; the rest of the loopback does not."""

NAMES = {
    "models.test": PUBLIC,
    "cdn.test": PUBLIC,
    "hub.test": PUBLIC,
    "rebinds.test": PUBLIC,  # the first time that it is looked up
    "liar.test": PUBLIC,  # no certificate has this name
    "inside.test": "10.0.0.1",
    "loopback.test": "127.0.0.1",
}

Body = Callable[[asyncio.StreamWriter], Awaitable[None]]


class Web:
    """A fake web server.

    pages: what the server writes, by path. asked: paths and headers in lower case, in order.
    """

    def __init__(self, ca: trustme.CA) -> None:
        self.ca = ca
        self.pages: dict[str, Body] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.lookups: list[str] = []
        self.port = 0

    def url(self, path: str, host: str = "models.test") -> str:
        return f"https://{host}:{self.port}{path}"

    @property
    def guard(self) -> Guard:
        async def look_up(host: str, port: int) -> Sequence[str]:
            self.lookups.append(host)
            if host not in NAMES:
                return [host]
            return ["127.0.0.1" if host == "rebinds.test" and self.lookups.count(host) > 1 else NAMES[host]]

        return Guard(lambda address: address == PUBLIC or is_public(address), look_up)

    @property
    def tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.ca.configure_trust(context)
        return context

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(ConnectionError, asyncio.IncompleteReadError, ssl.SSLError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            path = head[0].split(" ")[1]
            headers = dict(line.lower().split(": ", 1) for line in head[1:-2])
            self.asked.append((path, headers))
            await self.pages[path](writer)
            await writer.drain()


@asynccontextmanager
async def serving(ca: trustme.CA | None = None, listener: socket.socket | None = None) -> AsyncIterator[Web]:
    """Serve until the context is left, on a port of its own and with a certificate authority of its own unless these
    are given.

    ca: the authority that signs the server's certificate. listener: the listening socket.
    """
    web = Web(ca or trustme.CA())
    listener = listener or socket.create_server((PUBLIC, 0))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    web.ca.issue_cert("models.test", "cdn.test", "hub.test", "rebinds.test", PUBLIC).configure_cert(context)
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        with suppress(asyncio.CancelledError):  # which the streams' own callback does not expect
            await web.handle(reader, writer)

    server = await asyncio.start_server(accept, sock=listener, ssl=context)
    web.port = server.sockets[0].getsockname()[1]
    try:
        yield web
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def answer(status: int = 200, body: bytes = b"", **headers: str) -> Body:
    async def write(writer: asyncio.StreamWriter) -> None:
        fields = {"content-length": str(len(body)), "connection": "close"}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode() + body)

    return write


def redirect(location: str, status: int = 302, **headers: str) -> Body:
    return answer(status, location=location, **headers)


def bytes_as_they_are(*parts: bytes, pause_s: float = 0.0, endless: bool = False) -> Body:
    """Return a body that sends the parts unchanged, and the last one forever if `endless`.

    pause_s: the seconds between two parts.
    """

    async def write(writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
        while endless:
            await asyncio.sleep(pause_s)
            writer.write(parts[-1])
            await writer.drain()

    return write


async def silent(writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()
