"""A file object that keeps nothing: for writers of libraries that want a file where a stream is wanted."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Sink(io.RawIOBase):
    """Takes the written bytes and hands them on in pieces; its position goes on counting. Cannot seek."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._num_bytes = 0

    def writable(self) -> bool:
        """Return True: a library may write to a sink."""
        return True

    def write(self, data: Buffer, /) -> int:
        """Take bytes, which are copied since the library may use its buffer again; return their number."""
        piece = bytes(data)
        self._pieces.append(piece)
        self._num_bytes += len(piece)
        return len(piece)

    def tell(self) -> int:
        """Return the number of bytes that have been written from the beginning."""
        return self._num_bytes

    def drain(self) -> bytes:
        """Return the bytes written since the last call."""
        written = b"".join(self._pieces)
        self._pieces.clear()
        return written
