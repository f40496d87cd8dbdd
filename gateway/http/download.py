"""Replies with the content of a file, piece by piece. Knows nothing of the pieces' source."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import quote

from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send


async def open_download(name: str, num_bytes: int, pieces: AsyncIterator[bytes]) -> ASGIResponse:
    """Return a reply with a file's content once the first piece is there, so that an unreadable file is refused.

    Raises the errors of `pieces`: when the first piece cannot be read.
    """
    return _Download(name, num_bytes, await anext(pieces, b""), pieces)


class _Download(ASGIResponse):
    """The content of a file. If a piece cannot be read, the connection is closed before the file's end."""

    def __init__(  # the base's fields are of no use
        self, name: str, num_bytes: int, first: bytes, rest: AsyncIterator[bytes]
    ) -> None:
        self._name = name
        self._num_bytes = num_bytes
        self._first = first
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        named = f"attachment; filename*=UTF-8''{quote(self._name, safe='')}"
        headers = [
            (b"content-type", b"application/octet-stream"),
            (b"content-length", b"%d" % self._num_bytes),
            (b"content-disposition", named.encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self._first, "more_body": True})
        async for piece in self._rest:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
