"""Uploads: files that come part by part, in any order and several at once, each part once.

At the end the client says which parts make the file, and in which order.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Sequence

import msgspec

from gateway.db.files import parts as parts_db
from gateway.db.files import uploads as db
from gateway.db.files.uploads import NewUpload, UploadRow
from gateway.db.ids import new_id
from gateway.db.pool import Database
from gateway.domain.errors import InvalidRequest, NotFound, QuotaExceeded
from gateway.files.content import PartWriter
from gateway.files.service import File, Files
from gateway.support.cipher import Cipher, Place, Sealed

MAX_UPLOAD_BYTES = 8 << 30
"""The most bytes of a file that comes part by part."""

MAX_PART_BYTES = 64 << 20
MAX_PENDING = 100
"""The most uploads that a project has under way."""

MAX_PARTS = 10_000
LIVES_SECONDS = 3600


class Upload(msgspec.Struct, frozen=True, kw_only=True):
    """An upload as it is shown."""

    id: str
    created_at: datetime.datetime
    expires_at: datetime.datetime
    state: str
    purpose: str
    num_bytes: int
    name: str
    file: File | None = None
    """The file that was made of the parts; None before the upload is completed."""


class Uploads:
    """The uploads of projects. A gateway process has one.

    Methods raise the database's errors, and ContentUnreadable; None stands for an upload that does not exist.
    """

    def __init__(self, database: Database, files: Files, cipher: Cipher) -> None:
        self._database = database
        self._files = files
        self._cipher = cipher

    async def begin(
        self, project_id: str, *, name: str, purpose: str, num_bytes: int, keep_seconds: int | None
    ) -> Upload:
        """Begin an upload.

        num_bytes: the announced size of the whole file. keep_seconds: the seconds after which the file expires; None: a
        batch's input expires after `gateway.files.service.BATCH_SECONDS`, any other file never.

        Raises QuotaExceeded: when the project has too many uploads under way.
        """
        upload_id = new_id("upload")
        sealed = self._cipher.seal(name.encode(), _place(project_id, upload_id))
        new = NewUpload(
            project_id=project_id,
            id=upload_id,
            lives_seconds=LIVES_SECONDS,
            purpose=purpose,
            num_bytes=num_bytes,
            keep_seconds=keep_seconds,
            content_key=sealed.key_id,
            sealed_name=sealed.data,
        )
        async with self._database.transaction() as conn:
            row = await db.insert_upload(conn, new, max_pending=MAX_PENDING)
        if row is None:
            raise QuotaExceeded(
                f"This project has {MAX_PENDING} uploads under way. Complete or cancel some of them.",
                code="too_many_uploads",
            )
        return self._upload_of_row(project_id, row)

    async def check_pending(self, project_id: str, upload_id: str) -> bool:
        """Tell whether the project has the upload.

        Raises InvalidRequest: when the upload takes no parts any more.
        """
        async with self._database.acquire() as conn:
            row = await db.get_upload(conn, project_id, upload_id)
            if row is None:
                return False
            _check(row)
            if len(await parts_db.parts_of_upload(conn, project_id, upload_id)) >= MAX_PARTS:
                raise InvalidRequest(f"An upload has at most {MAX_PARTS} parts.", param="data", code="too_many_parts")
        return True

    async def add(self, project_id: str, upload_id: str, part: PartWriter) -> bool:
        """Add a part that has come whole; False where there is no such upload.

        Raises InvalidRequest: when the upload takes no parts any more.
        """
        async with self._database.transaction() as conn:
            row = await db.get_upload(conn, project_id, upload_id, for_change=True)
            if row is None:
                return False
            _check(row)
            if not await parts_db.finish_part(conn, project_id, part.id, part.num_bytes, upload_id=upload_id):
                raise NotFound("The part was given up before it was whole.")
        return True

    async def complete(
        self, project_id: str, upload_id: str, part_ids: Sequence[str], *, md5: str | None
    ) -> Upload | None:
        """Make a file of parts in this order, and remove the upload's other parts. A complete upload stays as it is.

        md5: the MD5 of the whole file, in hexadecimal; None: it is not checked.

        Raises InvalidRequest: when a part is not one of the upload's, or the whole is not as it was announced.
        """
        if md5 is not None:
            await self._check_md5(project_id, upload_id, part_ids, md5)
        async with self._database.transaction() as conn:
            row = await db.get_upload(conn, project_id, upload_id, for_change=True)
            if row is None:
                return None
            if row.state != "completed":
                _check(row)
                own = {part.id: part for part in await parts_db.parts_of_upload(conn, project_id, upload_id)}
                _check_parts(row, own, part_ids)
                new = self._files.new_file(
                    project_id,
                    name=self._name(project_id, row),
                    purpose=row.purpose,
                    num_bytes=row.num_bytes,
                    keep_seconds=row.keep_seconds,
                )
                made = await self._files.insert(conn, new)
                await parts_db.join_parts(conn, project_id, part_ids, made.id)
                await parts_db.remove_parts_of_upload(conn, project_id, upload_id)
                await db.end_upload(conn, project_id, upload_id, "completed", made.id)
                row = msgspec.structs.replace(row, state="completed", file_id=made.id)
        file = await self._files.get(project_id, row.file_id) if row.file_id else None
        return msgspec.structs.replace(self._upload_of_row(project_id, row), file=file)

    async def cancel(self, project_id: str, upload_id: str) -> Upload | None:
        """Cancel an upload and remove its parts. A cancelled upload stays so.

        Raises InvalidRequest: when the upload is completed or expired.
        """
        async with self._database.transaction() as conn:
            row = await db.get_upload(conn, project_id, upload_id, for_change=True)
            if row is None:
                return None
            if row.state != "cancelled":
                _check(row)
                await parts_db.remove_parts_of_upload(conn, project_id, upload_id)
                await db.end_upload(conn, project_id, upload_id, "cancelled")
        return self._upload_of_row(project_id, msgspec.structs.replace(row, state="cancelled"))

    async def _check_md5(self, project_id: str, upload_id: str, part_ids: Sequence[str], md5: str) -> None:
        async with self._database.acquire() as conn:
            row = await db.get_upload(conn, project_id, upload_id)
            if row is None or row.state == "completed":
                return
            _check(row)
            own = {part.id: part for part in await parts_db.parts_of_upload(conn, project_id, upload_id)}
        _check_parts(row, own, part_ids)
        digest = hashlib.md5(usedforsecurity=False)
        async for piece in self._files.content.stream(project_id, [own[part_id] for part_id in part_ids]):
            digest.update(piece)
        if digest.hexdigest() != md5.lower():
            raise InvalidRequest(
                "The MD5 of the parts in this order differs from the one given.", param="md5", code="invalid_checksum"
            )

    def _name(self, project_id: str, row: UploadRow) -> str:
        return self._cipher.open(Sealed(row.content_key, row.sealed_name), _place(project_id, row.id)).decode()

    def _upload_of_row(self, project_id: str, row: UploadRow) -> Upload:
        return Upload(
            id=row.id,
            created_at=row.created_at,
            expires_at=row.expires_at,
            state=row.state,
            purpose=row.purpose,
            num_bytes=row.num_bytes,
            name=self._name(project_id, row),
        )


def _check(row: UploadRow) -> None:
    """Check that an upload takes parts. Raises InvalidRequest: when the upload is completed, cancelled or expired."""
    if row.state != "pending":
        raise InvalidRequest(f"The upload is {row.state}.", param="upload_id", code=f"upload_{row.state}")


def _check_parts(row: UploadRow, own: dict[str, parts_db.PartRow], part_ids: Sequence[str]) -> None:
    for index, part_id in enumerate(part_ids):
        if part_id not in own:
            raise InvalidRequest("The upload has no such part.", param=f"part_ids[{index}]", code="invalid_value")
    if len(set(part_ids)) != len(part_ids):
        raise InvalidRequest("A part is named twice.", param="part_ids", code="invalid_value")
    total = sum(own[part_id].num_bytes for part_id in part_ids)
    if total != row.num_bytes:
        raise InvalidRequest(
            f"The parts have {total} bytes, and the upload announced {row.num_bytes}.",
            param="part_ids",
            code="wrong_size",
        )


def _place(project_id: str, upload_id: str) -> Place:
    return Place(project_id, "file_uploads.name", upload_id)
