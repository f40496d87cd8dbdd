"""Replies as the connection of a client wants them: without chunks for old clients, and read before the end.

Names of uvicorn's are tested in `tests/gateway/http/test_uvicorn_names.py`. Knows no bound and no parser.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

_OF_TEXT = bytes([*b"\t", *range(0x20, 0x7F), *range(0x80, 0x100)])
"""The bytes that a header's value may have."""


class LastWrites:
    """A connection's transport as a request sees it: `close`, after the reply, lets the client read the reply first."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close


def with_fitted_replies(cycle: RequestResponseCycle, app: Any) -> Any:
    """Return the application with the replies of one request fitted to what its client can read."""
    if cycle.scope["http_version"] == "1.0":
        return _without_chunks(cycle, app)
    return _ending_unasked(cycle, app) if cycle.waiting_for_100_continue else _beginning_quickly(cycle, app)


class _Sent(Awaitable[None]):
    """The awaitable that `send` returns when it has sent the message already, so that awaiting it takes no time."""

    def __await__(self) -> Generator[Any, Any, None]:
        yield from ()


_SENT = _Sent()


def _beginning_quickly(cycle: RequestResponseCycle, app: Any) -> Any:
    """Return the application for a usual client, with a faster way to send the heads of usual replies.

    Sending a head in this way takes less than half of the time that uvicorn takes.
    """

    def send(message: Any) -> Awaitable[None]:
        if message["type"] == "http.response.start" and _is_begun(cycle, message):
            return _SENT
        return cycle.send(message)

    return lambda scope, receive, _: app(scope, receive, send)


def _is_begun(cycle: RequestResponseCycle, message: Any) -> bool:
    """Send the head of a reply with status 200 as uvicorn would, and return True.

    Return False, and send nothing, for anything unusual: uvicorn has to send the head then. No value may hold a line
    break; that is checked once for the whole head instead of once for each header.
    """
    is_usual = message["status"] == 200 and cycle.scope["method"] != "HEAD"
    if not is_usual or cycle.flow.write_paused or cycle.disconnected or not cycle.keep_alive:
        return False
    headers = cycle.default_headers + message["headers"]
    parts, length = [STATUS_LINE[200]], None
    for name, value in headers:
        parts += (name, b": ", value, b"\r\n")
        if name == b"content-length":
            length = int(value)
        elif name in (b"connection", b"transfer-encoding"):
            return False
    parts.append(b"\r\n" if length is not None else b"transfer-encoding: chunked\r\n\r\n")
    head = b"".join(parts)
    num_lines = len(headers) + (2 if length is not None else 3)
    if head.translate(None, _OF_TEXT) != b"\r\n" * num_lines:
        return False
    cycle.response_started, cycle.waiting_for_100_continue = True, False
    cycle.chunked_encoding, cycle.expected_content_length = length is None, length or 0
    cycle.transport.write(head)
    return True


def _ending_unasked(cycle: RequestResponseCycle, app: Any) -> Any:
    """Return the application for a client that sends its body only after `100 Continue`.

    If the reply comes first, the client may leave the body out. The bytes after that could be the body or the next
    request (RFC 9110, 10.1.1), so the reply ends the connection.
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
