"""Server-sent events: the framing, an error in the middle of a stream, and the end of one whose client is gone."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import structlog
from litestar import Request
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send

from gateway.domain.errors import ClientGone, GatewayError
from gateway.http.disconnect import unless_gone
from gateway.http.envelope import call_of
from gateway.http.error_body import body_of, unexpected

log = structlog.get_logger(__name__)

DONE = b"data: [DONE]\n\n"

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def event(data: msgspec.Struct) -> bytes:
    """One event that carries a JSON object."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


class TextEvent:
    """Events that differ in one string alone: the rest of them is encoded once."""

    def __init__(self, example: msgspec.Struct, field: str) -> None:
        """example: an event whose `field`, the only one of that name, is empty. In JSON no text can look like it."""
        head, empty, self._tail = event(example).partition(f'"{field}":""'.encode())
        assert empty
        self._head = head + f'"{field}":'.encode()

    def __call__(self, text: str) -> bytes:
        return self._head + msgspec.json.encode(text) + self._tail


async def open_stream(request: Request[Any, Any, Any], events: AsyncGenerator[bytes]) -> ASGIResponse:
    """A streaming reply, once its first event exists: what is refused before that keeps its own status.

    An error after it becomes an error event, and the stream ends without `[DONE]`: clients take a clean end for
    success.
    """
    first = await unless_gone(request.receive, _first(events))
    return _EventStream(first, events)


async def _first(events: AsyncGenerator[bytes]) -> bytes:
    return await anext(events)


class _EventStream(ASGIResponse):
    def __init__(self, first: bytes, events: AsyncGenerator[bytes]) -> None:
        super().__init__()
        self._first = first
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = call_of(scope)
        try:
            await unless_gone(receive, self._write(scope, send))
        except ClientGone as gone:
            call.error = gone.code
        finally:
            await self._events.aclose()  # which aborts what still runs

    async def _write(self, scope: Scope, send: Send) -> None:
        call = call_of(scope)
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        try:
            await _send(send, self._first)
            async for data in self._events:
                await _send(send, data)
        except GatewayError as error:
            call.error = error.code
            await _send(send, event(body_of(error)))
        except Exception:
            log.exception("stream_failed", request_id=call.request_id)
            call.error = "internal_error"
            await _send(send, event(body_of(unexpected(call.request_id))))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})
