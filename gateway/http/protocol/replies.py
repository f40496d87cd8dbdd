"""Replies as the connection of a client wants them: without chunks for old clients, and read before the end.

Names of uvicorn's are tested in `tests/gateway/http/test_uvicorn_names.py`. Knows no bound and no parser.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class LastWrites:
    """A connection's transport as a request sees it: `close`, after the reply, lets the client read the reply first."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close


def fitting(cycle: RequestResponseCycle, app: Any) -> Any:
    """Return the application with the replies of one request fitted to what its client can read."""
    if cycle.scope["http_version"] == "1.0":
        return _without_chunks(cycle, app)
    return _ending_unasked(cycle, app) if cycle.waiting_for_100_continue else app


def _ending_unasked(cycle: RequestResponseCycle, app: Any) -> Any:
    """Return the application for a client that sends its body once asked: answered unasked, it may not send it at all.

    The next bytes could then be a body or a request (RFC 9110, 10.1.1), so the connection ends.
    """

    async def send(message: Any) -> None:
        cycle.keep_alive = cycle.keep_alive and not cycle.waiting_for_100_continue
        await cycle.send(message)

    return lambda scope, receive, _: app(scope, receive, send)


def _without_chunks(cycle: RequestResponseCycle, app: Any) -> Any:
    """Return the application for a client of HTTP/1.0, which knows no chunks (RFC 9112, 6.1)."""

    async def send(message: Any) -> None:
        cycle.chunked_encoding = False
        cycle.expected_content_length = len(message.get("body", b""))
        await cycle.send(message)

    return lambda scope, receive, _: app(scope, receive, send)
