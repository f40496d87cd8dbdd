"""Files: made of streams of bytes, shown, read and deleted, by their own project alone."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Literal

import msgspec

from gateway.db.files import files as db
from gateway.db.files import parts as parts_db
from gateway.db.files.files import FileRow, NewFile
from gateway.db.files.parts import PartRow
from gateway.db.ids import new_id
from gateway.db.organization import audit
from gateway.db.pool import Database
from gateway.domain.errors import NotFound
from gateway.files.content import FileContent, PartWriter
from gateway.support.cipher import Cipher, Place, Sealed

if TYPE_CHECKING:
    from gateway.db.pool import Connection

Purpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals", "batch_output"]

BATCH_SECONDS = 30 * 86400
"""Seconds after which a batch's input and output expire, where the client gives no time."""


class File(msgspec.Struct, frozen=True, kw_only=True):
    """A file as it is shown."""

    id: str
    created_at: datetime.datetime
    expires_at: datetime.datetime | None
    """The time at which the file expires; None: never."""
    purpose: str
    num_bytes: int
    name: str


class FilePage(msgspec.Struct, frozen=True):
    """A page of the list of files."""

    files: list[File]
    has_more: bool
    """True if further files follow after the page."""


class Files:
    """The files of projects. A gateway process has one. Methods raise the database's errors, and ContentUnreadable."""

    def __init__(self, database: Database, content: FileContent, cipher: Cipher) -> None:
        self._database = database
        self.content = content
        self._cipher = cipher

    async def make(
        self, project_id: str, part: PartWriter, *, name: str, purpose: str, keep_seconds: int | None
    ) -> File:
        """Make a file of a part that has come whole.

        keep_seconds: the seconds after which the file expires; None: a batch's input or output expires after
        BATCH_SECONDS, any other file never.

        Raises NotFound: when the project is purged, or the part was given up.
        """
        new = self.new_file(project_id, name=name, purpose=purpose, num_bytes=part.num_bytes, keep_seconds=keep_seconds)
        async with self._database.transaction() as conn:
            return await self.insert(conn, new, part)

    def new_file(
        self,
        project_id: str,
        *,
        name: str,
        purpose: str,
        num_bytes: int,
        keep_seconds: int | None,
        file_id: str | None = None,
    ) -> NewFile:
        """Return the row of a file that is about to be made.

        file_id: the file's id, where it was chosen before; None: a new id is made. num_bytes: the size of the file.
        keep_seconds: the seconds after which the file expires; None: a batch's input or output expires after
        BATCH_SECONDS, any other file never.
        """
        file_id = file_id or new_id("file")
        sealed = self._cipher.seal(name.encode(), _place(project_id, file_id))
        if keep_seconds is None and purpose in ("batch", "batch_output"):
            keep_seconds = BATCH_SECONDS
        return NewFile(
            project_id=project_id,
            id=file_id,
            purpose=purpose,
            num_bytes=num_bytes,
            keep_seconds=keep_seconds,
            content_key=sealed.key_id,
            sealed_name=sealed.data,
        )

    async def insert(self, conn: Connection, new: NewFile, part: PartWriter | None = None) -> File:
        """Make a file in the caller's transaction.

        part: the only part of the file, which has come whole; None: the caller gives the file its parts.

        Raises NotFound: when the project is purged, or the part was given up.
        """
        row = await db.insert_file(conn, new)
        finished = part is None or (
            row is not None
            and await parts_db.finish_part(conn, new.project_id, part.id, part.num_bytes, file_id=new.id)
        )
        if row is None or not finished:
            raise NotFound("The file was given up before it was whole.")
        return self._file_of_row(new.project_id, row)

    async def get(self, project_id: str, file_id: str) -> File | None:
        """Return a file; None where there is none."""
        async with self._database.acquire() as conn:
            row = await db.get_file(conn, project_id, file_id)
        return None if row is None else self._file_of_row(project_id, row)

    async def page(
        self, project_id: str, *, purpose: str | None, after: str | None, order: Literal["asc", "desc"], limit: int
    ) -> FilePage | None:
        """Return a page of files; None where there is no file `after`.

        purpose: only files of this purpose; None: of any. after: the id of the file before the page; None: it is the
        first page.
        """
        async with self._database.acquire() as conn:
            if after is not None and await db.get_file(conn, project_id, after) is None:
                return None
            rows = await db.list_files(conn, project_id, purpose=purpose, after=after, order=order, limit=limit + 1)
        return FilePage([self._file_of_row(project_id, row) for row in rows[:limit]], len(rows) > limit)

    async def delete(self, project_id: str, file_id: str, author: audit.Author) -> bool:
        """Delete a file for good, which the audit log records; False where there is none."""
        async with self._database.transaction() as conn:
            removed = await db.remove_file(conn, project_id, file_id)
            if removed is None:
                return False
            purpose, num_bytes = removed
            before = {"id": file_id, "purpose": purpose, "bytes": num_bytes}
            await audit.record(conn, author, "file.deleted", file_id, project_id=project_id, before=before)
        return True

    async def parts(self, project_id: str, file_id: str) -> list[PartRow]:
        """Return the parts of a file that is shown, or that a batch still reads."""
        async with self._database.acquire() as conn:
            return await parts_db.parts_of_file(conn, project_id, file_id)

    async def read(self, project_id: str, file_id: str) -> AsyncIterator[bytes]:
        """Yield the content of a file that is shown.

        Raises as `FileContent.stream`.
        """
        async for piece in self.content.stream(project_id, await self.parts(project_id, file_id)):
            yield piece

    def _file_of_row(self, project_id: str, row: FileRow) -> File:
        name = self._cipher.open(Sealed(row.content_key, row.sealed_name), _place(project_id, row.id))
        return File(
            id=row.id,
            created_at=row.created_at,
            expires_at=row.expires_at,
            purpose=row.purpose,
            num_bytes=row.num_bytes,
            name=name.decode(),
        )


def _place(project_id: str, file_id: str) -> Place:
    return Place(project_id, "files.name", file_id)
