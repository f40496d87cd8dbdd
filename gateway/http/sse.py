"""Server-sent events: the framing, an error in the middle of a stream, and the end of one whose client is gone."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import structlog
from litestar import Request
from litestar.response.base import ASGIResponse
from litestar.types import HTTPResponseBodyEvent, Receive, Scope, Send

from gateway.domain.errors import ClientGone, GatewayError
from gateway.http.disconnect import unless_disconnected
from gateway.http.error_body import body_of, unexpected_error
from gateway.http.request.call import Call, call_of

log = structlog.get_logger(__name__)

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

DONE = b"data: [DONE]\n\n"

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


_LINE_ENDS = ((b"\xc2\x85", rb"\u0085"), (b"\xe2\x80\xa8", rb"\u2028"), (b"\xe2\x80\xa9", rb"\u2029"))
"""Characters that JSON leaves as they are, with their escapes. In a stream of events only CR and LF end a line (WHATWG
HTML, section 9.2.5), but for many clients these do as well: for httpx's `iter_lines` and Python's `splitlines`."""


def event(data: msgspec.Struct) -> bytes:
    """Return one event that carries a JSON object."""
    return b"data: " + in_one_line(msgspec.json.encode(data)) + b"\n\n"


def named_event(name: str, data: msgspec.Struct) -> bytes:
    """Return one event that carries a JSON object and has a name of its own."""
    return b"event: " + name.encode() + b"\n" + event(data)


def in_one_line(encoded: bytes) -> bytes:
    """Return a JSON text without any character that some client takes for the end of a line."""
    if not encoded.isascii():
        for character, escape in _LINE_ENDS:
            encoded = encoded.replace(character, escape)
    return encoded


class TextEvent:
    """A server-sent event in which only one string varies: all the rest is encoded once."""

    def __init__(self, example: msgspec.Struct, field: str) -> None:
        """Encode all of an event but one string.

        example: an event whose only field of the name `field` is empty. JSON escapes quotes, so that no text in the
        event can be mistaken for that field.
        """
        head, empty, self._tail = event(example).partition(f'"{field}":""'.encode())
        assert empty
        self._head = head + f'"{field}":'.encode()

    def __call__(self, text: str) -> bytes:
        """Return the event with this text as the string that varies."""
        return self._head + in_one_line(msgspec.json.encode(text)) + self._tail


class Encoder(Protocol[T_contra]):
    """An encoder that turns the items of a reply into server-sent events."""

    async def encode(self, item: T_contra) -> bytes:
        """Return the events of one item, b"" where it has none."""

    def end(self) -> bytes:
        """Return the events that follow the last item, b"" where none do."""


class EncodedEvents:
    """The encoder for a stream whose items are encoded events already: it changes nothing."""

    async def encode(self, item: bytes) -> bytes:
        """Return an item unchanged: it is encoded already."""
        return item

    def end(self) -> bytes:
        """Return no events: the last item includes the end."""
        return b""


def error_event(error: GatewayError) -> bytes:
    """Return the event that ends a stream after a failure."""
    return event(body_of(error))


async def open_stream(
    request: Request[Any, Any, Any],
    items: AsyncGenerator[T],
    encoder: Encoder[T],
    failed: Callable[[GatewayError], bytes] = error_event,
) -> ASGIResponse:
    """Return a streaming reply once its first event exists, so that a refusal before that keeps its own status.

    After the first event, `failed` makes the last event from an error. The stream then ends without the events of
    `encoder.end`, since clients take these for success.
    """
    stream = _EventStream(items, encoder, failed)
    await unless_disconnected(call_of(request.scope), stream.begin())
    return stream


class _EventStream(ASGIResponse, Generic[T]):
    def __init__(  # the base's fields are of no use here
        self, items: AsyncGenerator[T], encoder: Encoder[T], failed: Callable[[GatewayError], bytes]
    ) -> None:
        self._items = items
        self._encoder = encoder
        self._failed = failed
        self._first = b""

    async def begin(self) -> None:
        """Wait until there is something to send, be it the end of the stream.

        Raises the errors of the items: when they fail before the first event; they are closed then.
        """
        try:
            async for item in self._items:
                self._first = await self._encoder.encode(item)
                if self._first:
                    return
        except BaseException:
            await self._items.aclose()
            raise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = call_of(scope)
        try:
            await unless_disconnected(call, self._write(call, send))
        except ClientGone as gone:
            call.error = gone.code
        finally:
            await self._items.aclose()  # which aborts what still runs

    async def _write(self, call: Call, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        try:
            if self._first:
                await send(_body_part(self._first))
            async for item in self._items:
                if data := await self._encoder.encode(item):
                    await send(_body_part(data))
            last = self._encoder.end()
        except GatewayError as error:
            call.error, call.is_clients_error = error.code, error.status < 500
            last = self._failed(error)
        except Exception:
            log.exception("stream_failed", request_id=call.request_id)
            call.error = "internal_error"
            last = self._failed(unexpected_error(call.request_id))
        await send({"type": "http.response.body", "body": last, "more_body": False})


def _body_part(data: bytes) -> HTTPResponseBodyEvent:
    return {"type": "http.response.body", "body": data, "more_body": True}
