"""HTTP by hand: the bytes of requests, and replies parsed as strictly as the RFC allows."""

from __future__ import annotations

import json
import socket

import msgspec

from tests.gateway.conftest import House
from tests.patience import PATIENCE_S


def post(house: House, path: str, body: dict[str, object], *headers: str, version: str = "1.1") -> bytes:
    content = json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/{version}",
        "host: x",
        f"authorization: Bearer {house.acme.key}",
        f"content-length: {len(content)}",
        *headers,
    ]
    return "".join(f"{line}\r\n" for line in lines).encode() + b"\r\n" + content


def connect(house: House) -> socket.socket:
    return socket.create_connection(("127.0.0.1", house.gateway.port), timeout=PATIENCE_S)


class RawReply(msgspec.Struct, frozen=True):
    """A parsed reply."""

    status_line: str
    headers: dict[str, str]
    body: bytes
    chunks: list[bytes] | None
    """The body's chunks as they were framed, without the last one; None where a length was given."""

    @property
    def events(self) -> list[str]:
        """The events of the body, without the empty line that ends each."""
        *events, rest = self.body.decode().split("\n\n")
        assert rest == ""
        return events


class Replies:
    """A strict reader of successive replies from one connection, which detects bytes between them."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._received = b""

    def next(self) -> RawReply:
        status_line, *lines = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        assert len(headers) == len(lines), "no header twice"
        assert ("transfer-encoding" in headers) != ("content-length" in headers), "RFC 9112, 6.3"
        if "content-length" in headers:
            return RawReply(status_line, headers, self._exactly(int(headers["content-length"])), None)
        assert headers["transfer-encoding"] == "chunked"
        chunks = []
        while size := int(self._until(b"\r\n"), 16):
            chunks.append(self._exactly(size))
            assert self._exactly(2) == b"\r\n"
        assert self._exactly(2) == b"\r\n", "no trailers"
        return RawReply(status_line, headers, b"".join(chunks), chunks)

    def is_over(self) -> bool:
        """Tell whether the server closes the connection now, without bytes after the last reply."""
        return self._received == b"" and self._sock.recv(1) == b""

    def _until(self, end: bytes) -> bytes:
        while end not in self._received:
            self._more()
        found, _, self._received = self._received.partition(end)
        return found

    def _exactly(self, size: int) -> bytes:
        while len(self._received) < size:
            self._more()
        found, self._received = self._received[:size], self._received[size:]
        return found

    def _more(self) -> None:
        data = self._sock.recv(65536)
        assert data, f"the connection ends in the midst of a reply: {self._received!r}"
        self._received += data
