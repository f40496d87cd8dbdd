"""Framing of requests: the heads that are refused, and the bytes of a chunked body that are no content.

A proxy in front may find the end of a request elsewhere than this server does; what it takes for a body would then be
a request here, with headers that it never saw. So heads that can be read in two ways are refused (RFC 9112, 11.2).
Knows no connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import httptools

from gateway.http.protocol.refusals import HEAD_TOO_LARGE, MAX_HEAD_BYTES, MAX_HEADERS, NO_HTTP

Headers = Sequence[tuple[bytes, bytes]]
"""Names in lower case, and values."""

MAX_EXCESS_BYTES = 16 << 10
"""The most bytes of a chunked body's framing (sizes, extensions, trailers) beyond those that its content may need."""

CHUNK_BYTES = 16
"""The bytes of framing around each chunk that do not count as excess."""

FRAMED_BYTES_PER_BYTE = 3
"""The bytes that may come for a byte of content, beside CHUNK_BYTES for each chunk: chunks of one byte need no more."""


def refusal_of_head(url: bytes, headers: Headers, version: str) -> bytes | None:
    """Return the reply to a head that is refused; None for one that is read. version: HTTP's, such as "1.1"."""
    if len(headers) > MAX_HEADERS or len(url) + sum(map(len, chain.from_iterable(headers))) > MAX_HEAD_BYTES:
        return HEAD_TOO_LARGE
    names = [name for name, _ in headers]
    has_one_host = names.count(b"host") == 1
    if version == "1.1" and has_one_host and b"transfer-encoding" not in names:
        return None
    if version not in ("1.0", "1.1") or names.count(b"host") > 1 or (version == "1.1" and not has_one_host):
        return NO_HTTP
    codings = [value.lower() for name, value in headers if name == b"transfer-encoding"]
    return None if not codings or (codings == [b"chunked"] and version == "1.1") else NO_HTTP


def without_upgrade(method: bytes, url: bytes, version: str, headers: Headers) -> bytes:
    """Return a head as bytes, without the offer to speak another protocol, which a server may ignore (RFC 9110, 7.8).

    The parser would take the bytes after such a head for the other protocol's, also where they are a body.
    """
    lines = [b"%b %b HTTP/%b" % (method, url, version.encode())]
    for name, value in headers:
        if name == b"connection":
            tokens = [token for token in value.split(b",") if token.strip().lower() != b"upgrade"]
            lines.append(b"connection: " + b",".join(tokens))
        elif name != b"upgrade":
            lines.append(name + b": " + value)
    return b"\r\n".join(lines) + b"\r\n\r\n"


def parser_for(receiver: object) -> httptools.HttpRequestParser:
    """Return a parser of one connection's requests. receiver: has the methods that the parser calls.

    Bytes after a request that ends its connection are ignored: by default the parser would raise an error for them.
    """
    parser = httptools.HttpRequestParser(receiver)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


class Excess:
    """Counts the bytes of one body that are framing rather than content, as they come."""

    def __init__(self) -> None:
        self._num_bytes = 0
        self._num_allowed = 0

    def begin(self) -> None:
        """Begin to count anew: a body begins."""
        self._num_bytes = self._num_allowed = 0

    def chunk(self) -> None:
        """Count the beginning of a chunk."""
        self._num_allowed += CHUNK_BYTES

    def content(self, num_bytes: int) -> None:
        """Count bytes of content."""
        self._num_allowed += FRAMED_BYTES_PER_BYTE * num_bytes

    def is_too_much(self, num_bytes: int) -> bool:
        """Count all bytes of one read, and tell whether too many bytes of the body so far were excess.

        num_bytes: the bytes that were read, framing and content. The chunks and the content in them, which have to be
        counted before, allow a number of these bytes; what they allow and this read did not use is not carried over.
        """
        self._num_bytes = max(0, self._num_bytes + num_bytes - self._num_allowed)
        self._num_allowed = 0
        return self._num_bytes > MAX_EXCESS_BYTES
