"""Streams for clients of HTTP/1.0, which know no chunks (RFC 9112, 6.1): such a reply lasts until the connection ends.

Uvicorn sends chunks wherever no length is given.
"""

from __future__ import annotations

from typing import Any

from litestar.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle


def for_old_clients(base: type[HttpToolsProtocol]) -> type[HttpToolsProtocol]:
    """Return a protocol for HTTP that sends no chunks to clients that speak HTTP/1.0."""

    class ForOldClients(base):  # type: ignore[misc, valid-type]
        def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
            is_old = cycle.scope["http_version"] == "1.0"
            super()._start_asgi_task(cycle, _unchunked(app, cycle) if is_old else app)

    return ForOldClients


def _unchunked(app: Any, cycle: RequestResponseCycle) -> Any:
    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        has_length = True

        async def send_plain(message: Message) -> None:
            nonlocal has_length
            if message["type"] == "http.response.start":
                has_length = any(name.lower() == b"content-length" for name, _ in message["headers"])
                if not has_length:
                    cycle.chunked_encoding = False
            elif message["type"] == "http.response.body" and not has_length:
                cycle.expected_content_length = len(message["body"])
            await send(message)

        await app(scope, receive, send_plain)

    return run
