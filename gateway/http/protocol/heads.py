"""Bounds on the bytes before a request's body, and the error shape for bytes that are no HTTP at all.

They hold before there is a request, a route or a key. Uvicorn keeps whatever httptools reads of a head, however long.
"""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 << 10
MAX_HEADERS = 128
LINGER_S = 2.0
"""Seconds for which further bytes of a refused client are read and dropped: closed at once, it might never see why."""

_HEAD = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
_BODY = b'{"error":{"message":"%b","type":"invalid_request_error","param":null,"code":"%b"}}'


class HeadTooLarge(Exception):
    """The head of a request is too large. It is raised to the parser, which goes no further."""


def bounded_heads(base: type[HttpToolsProtocol]) -> type[HttpToolsProtocol]:
    """Return a protocol for HTTP that takes at most MAX_HEADERS headers and, with the URL, MAX_HEAD_BYTES."""

    class BoundedHeads(base):  # type: ignore[misc, valid-type]
        num_heads = 0
        num_unfinished_bytes = 0
        is_in_head = False
        is_refused = False
        is_too_large = False

        def data_received(self, data: bytes) -> None:
            if self.is_refused:
                return
            before = self.num_heads if self.is_in_head else None
            super().data_received(data)
            if not self.is_in_head or self.is_refused:
                return
            # A head that ends is measured at its end. A head that does not end is measured since a chunk that lay
            # wholly in it.
            self.num_unfinished_bytes += len(data) if before == self.num_heads else 0
            if self.num_unfinished_bytes > MAX_HEAD_BYTES:
                self.is_too_large = True
                self.send_400_response("")

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self.is_in_head = True
            self.num_heads += 1
            self.num_unfinished_bytes = 0

        def on_headers_complete(self) -> None:
            self.is_in_head = False
            num_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
            if len(self.headers) > MAX_HEADERS or num_bytes > MAX_HEAD_BYTES:
                self.is_too_large = True
                raise HeadTooLarge
            super().on_headers_complete()

        def send_400_response(self, msg: str) -> None:
            """Answer bytes that the parser refuses; called by the base class. msg is not for a client."""
            self.is_refused = True
            self.transport.write(_too_large() if self.is_too_large else _no_http())
            self.loop.call_later(LINGER_S, self.transport.close)

    return BoundedHeads


def _too_large() -> bytes:
    message = b"The headers of the request are too large: at most %d, and %d bytes." % (MAX_HEADERS, MAX_HEAD_BYTES)
    return refusal(b"431 Request Header Fields Too Large", message, b"headers_too_large")


def _no_http() -> bytes:
    return refusal(b"400 Bad Request", b"Invalid HTTP request received.", b"invalid_http")


def refusal(status: bytes, message: bytes, code: bytes) -> bytes:
    """Return a whole reply, for a connection that ends with this reply. status: with its phrase."""
    body = _BODY % (message, code)
    return _HEAD % (status, len(body)) + body
