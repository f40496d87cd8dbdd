"""Whole replies as bytes, for connections that end with the reply, mostly before there is a request."""

from __future__ import annotations

from http import HTTPStatus

import msgspec

from gateway.http.error_body import ErrorBody, ErrorDetail

MAX_HEAD_BYTES = 64 << 10
MAX_HEADERS = 128


def _refusal(status: int, message: str, code: str, kind: str = "invalid_request_error", lines: str = "") -> bytes:
    """Return a reply in the shape of errors. lines: further headers."""
    body = msgspec.json.encode(ErrorBody(ErrorDetail(message, kind, None, code)))
    head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\nconnection: close\r\n"
    return f"{head}{lines}content-length: {len(body)}\r\n\r\n".encode() + body


_LATER = "retry-after: 1\r\n"
_OPEN = "has too many open connections."

NO_HTTP = _refusal(400, "Invalid HTTP request received.", "invalid_http")
NO_HEAD = _refusal(408, "The headers of the request did not arrive in time.", "request_timeout")
NO_BODY = _refusal(408, "The body of the request did not arrive in time.", "request_timeout")
TOO_MANY = _refusal(429, f"Your address {_OPEN}", "rate_limit_exceeded", "requests", _LATER)
_HEAD_BOUNDS = f"at most {MAX_HEADERS}, and {MAX_HEAD_BYTES} bytes."
HEAD_TOO_LARGE = _refusal(431, f"The headers of the request are too large: {_HEAD_BOUNDS}", "headers_too_large")
FULL = _refusal(503, f"The server {_OPEN} Try again later.", "server_is_overloaded", "server_error", _LATER)
