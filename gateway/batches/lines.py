"""Reads lines of an input file while they run. A few pieces of the file are cached."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from gateway.db.files.parts import PartRow
from gateway.files.content import PIECE_BYTES, FileContent

MAX_PIECES = 5
"""The number of cached pieces.

Lines that are claimed together lie no further apart, unless they are longer than 4 kB.
"""


class LineReader:
    """Reads one file by ranges of bytes."""

    def __init__(self, content: FileContent, project_id: str, parts: Sequence[PartRow]) -> None:
        self._content = content
        self._project_id = project_id
        self._parts = parts
        self._pieces: OrderedDict[tuple[str, int], bytes] = OrderedDict()

    async def read(self, first_byte: int, num_bytes: int) -> bytes:
        """Return bytes of the file.

        Raises as `FileContent.piece`.
        """
        found = bytearray()
        begins_at = 0
        for part in self._parts:
            while len(found) < num_bytes and first_byte + len(found) < begins_at + part.num_bytes:
                place = first_byte + len(found) - begins_at
                if place < 0:
                    break
                piece = await self._piece(part, place // PIECE_BYTES)
                start = place % PIECE_BYTES
                found += piece[start : start + num_bytes - len(found)]
            begins_at += part.num_bytes
        return bytes(found)

    async def _piece(self, part: PartRow, number: int) -> bytes:
        key = (part.id, number)
        if key not in self._pieces:
            self._pieces[key] = await self._content.piece(self._project_id, part, number)
            if len(self._pieces) > MAX_PIECES:
                self._pieces.popitem(last=False)
        return self._pieces[key]
