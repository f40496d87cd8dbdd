"""The two files that an archive is unpacked to, within a bound on their size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import BinaryIO, Protocol

from adapters.archive.members import refusal

COPY_BYTES = 128 * 1024
# An archive is a bomb if it unpacks to more than this, and to more than MAX_RATIO times its packed bytes: weights never
# do.
FREE_BYTES = 16 * 1024 * 1024
MAX_RATIO = 100
# Bytes of a zip's directory, or of a tar's headers between two members and zeros after the last, at most.
MAX_HEADERS_BYTES = 256 * 1024


class ByteStream(Protocol):
    """A stream of bytes, such as an entry of an archive."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; none at the end."""


class Output:
    """The target of an unpacked archive: open, empty files by name, which may take max_bytes together."""

    def __init__(self, files: Mapping[str, BinaryIO], max_bytes: int) -> None:
        self._files = files
        self.max_bytes = max_bytes
        self._left_bytes = max_bytes

    def check_size(self, member: str, num_bytes: int) -> None:
        """Check that a member of num_bytes bytes has room.

        Raises AdapterRejected: when the member has none.
        """
        if not 0 <= num_bytes <= self._left_bytes:
            raise refusal(member, f"takes {num_bytes} bytes; unpacked, {self.max_bytes} are allowed")

    def copy(self, source: ByteStream, file_name: str, member: str, num_bytes: int) -> None:
        """Copy a member's content from `source` to the file called file_name; no more than num_bytes are read.

        num_bytes: the member's size, as the archive says.

        Raises AdapterRejected: when the member has no room, or `source` holds fewer bytes.
        """
        self.check_size(member, num_bytes)
        self._left_bytes -= num_bytes
        missing = num_bytes
        while missing and (chunk := source.read(min(COPY_BYTES, missing))):
            self._files[file_name].write(chunk)
            missing -= len(chunk)
        if missing:
            raise refusal(member, f"is cut short: {missing} of its {num_bytes} bytes are missing")
