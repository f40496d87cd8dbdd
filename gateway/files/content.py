"""The content of files: a stream of bytes to sealed pieces in the store, and back. Holds one piece at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import structlog

from adapters.errors import StoreFailure
from gateway.content.content_quota import NO_ROOM, ContentQuota
from gateway.db.files import parts as db
from gateway.db.files.parts import PartRow
from gateway.db.ids import new_id
from gateway.db.pool import Database
from gateway.domain.errors import FileUnavailable, NotFound, Overloaded, QuotaExceeded
from gateway.files.pieces import Pieces
from gateway.support.cipher import Cipher, Place, Sealed

if TYPE_CHECKING:
    from gateway.db.pool import Connection

log = structlog.get_logger(__name__)

PIECE_BYTES = 1 << 20
"""The bytes of each piece of a part but the last, before they are encrypted."""

COUNT_BYTES = 8 << 20
"""The bytes of an arriving part after which its size in the database is updated."""

RETRY_AFTER_S = 60.0


class FileContent:
    """Writes and reads the content of files. A gateway process has one.

    room: the bound on a project's stored content; None: there is none.
    """

    def __init__(self, database: Database, pieces: Pieces, cipher: Cipher, room: ContentQuota | None = None) -> None:
        self._database = database
        self._pieces = pieces
        self._cipher = cipher
        self._room = room

    async def begin(self, project_id: str) -> PartWriter:
        """Begin a part, and return its writer.

        Raises NotFound: when the project is purged.
        Raises QuotaExceeded: when the project has no room left.
        """
        part_id = new_id("part")
        async with self._database.acquire() as conn:
            await self.take_room(conn, project_id, 0)
            if not await db.begin_part(conn, project_id, part_id, self._cipher.key_id):
                raise NotFound("The project does not exist any more.")
        return PartWriter(self, project_id, part_id)

    async def take_room(self, conn: Connection, project_id: str, num_bytes: int) -> None:
        """Reserve room for bytes that a project is about to store.

        Raises QuotaExceeded: when the project has no room for the bytes.
        """
        if self._room is not None and not await self._room.take(conn, project_id, num_bytes):
            raise QuotaExceeded(f"The file cannot be stored: {NO_ROOM}.", param="file", code="content_quota_exceeded")

    async def count_bytes(self, project_id: str, part_id: str, num_bytes: int, num_more: int) -> None:
        """Update the size of a part that is arriving. num_more: the bytes since the last update.

        Raises QuotaExceeded: when the project has no room for the bytes.
        Raises NotFound: when the part took too long and was given up.
        """
        async with self._database.acquire() as conn:
            await self.take_room(conn, project_id, num_more)
            if not await db.touch_part(conn, project_id, part_id, num_bytes):
                raise NotFound("The upload took too long, and was given up.")

    async def give_up(self, project_id: str, part_id: str) -> None:
        """Mark an incomplete part to be removed with its bytes."""
        async with self._database.acquire() as conn:
            await db.give_up_part(conn, project_id, part_id)

    async def write_piece(self, project_id: str, part_id: str, number: int, data: bytes) -> None:
        """Encrypt and store one piece.

        Raises Overloaded: when the store takes no more.
        """

        def work() -> None:
            sealed = self._cipher.seal(data, _place(project_id, part_id, number))
            self._pieces.write(project_id, part_id, number, sealed.data)

        try:
            await asyncio.to_thread(work)
        except StoreFailure as error:
            log.error("file_not_written", error=str(error))
            raise Overloaded(
                "The server cannot store files at the moment. Try again later.", retry_after_s=RETRY_AFTER_S
            ) from None

    async def piece(self, project_id: str, part: PartRow, number: int) -> bytes:
        """Return one decrypted piece of a part.

        Raises FileUnavailable: when the piece is missing or has another size, or the store fails.
        Raises ContentUnreadable: when this gateway lacks the content key that encrypted the piece.
        """

        def work() -> bytes | None:
            data = self._pieces.read(project_id, part.id, number)
            if data is None:
                return None
            return self._cipher.open(Sealed(part.content_key, data), _place(project_id, part.id, number))

        try:
            found = await asyncio.to_thread(work)
        except StoreFailure as error:
            log.error("file_not_read", error=str(error))
            raise FileUnavailable from None
        if found is None or len(found) != min(PIECE_BYTES, part.num_bytes - number * PIECE_BYTES):
            log.error("file_piece_missing", project_id=project_id, part=part.id, number=number)
            raise FileUnavailable
        return found

    async def stream(self, project_id: str, parts: Sequence[PartRow]) -> AsyncIterator[bytes]:
        """Yield the content of parts, piece by piece.

        Raises as `piece`.
        """
        for part in parts:
            for number in range(-(-part.num_bytes // PIECE_BYTES)):
                yield await self.piece(project_id, part, number)


class PartWriter:
    """A writer of one part, from its first byte until its row is finished. Ended early, the part is removed."""

    def __init__(self, content: FileContent, project_id: str, part_id: str) -> None:
        self._content = content
        self._project_id = project_id
        self.id = part_id
        self.num_bytes = 0
        """The bytes that have come."""
        self._counted_bytes = 0
        self._number = 0
        self._waiting = bytearray()

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes; write each piece once it is whole, and count the bytes in the database now and then.

        Raises as `FileContent.write_piece` and `FileContent.count_bytes`.
        """
        self._waiting += data
        self.num_bytes += len(data)
        while len(self._waiting) >= PIECE_BYTES:
            await self._flush(PIECE_BYTES)
        if self.num_bytes - self._counted_bytes >= COUNT_BYTES:
            await self._count_bytes()

    async def flush(self) -> None:
        """Store the remaining bytes. The part is then complete in the store, and its row has yet to be finished."""
        if self._waiting:
            await self._flush(len(self._waiting))
        await self._count_bytes()

    async def give_up(self) -> None:
        """Mark the part to be removed with its bytes."""
        await self._content.give_up(self._project_id, self.id)

    async def _flush(self, num_bytes: int) -> None:
        piece = bytes(self._waiting[:num_bytes])
        del self._waiting[:num_bytes]
        await self._content.write_piece(self._project_id, self.id, self._number, piece)
        self._number += 1

    async def _count_bytes(self) -> None:
        counted, self._counted_bytes = self._counted_bytes, self.num_bytes
        await self._content.count_bytes(self._project_id, self.id, self.num_bytes, self.num_bytes - counted)


def _place(project_id: str, part_id: str, number: int) -> Place:
    return Place(project_id, "file_parts.piece", f"{part_id}/{number}")
