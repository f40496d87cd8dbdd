"""Resumable uploads: an archive that comes piece by piece, each where the last one ended.

The bytes of an import lie in one file of the gateways' data folder. All bytes that the database counts as received are
on disk; bytes that a gateway that died has written beyond that are cut off. Only one request writes at a time, through
a lock on the file, which the kernel takes back from a process that dies. Knows nothing of what the bytes are.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO

import structlog

from gateway.db.adapters import adapter_imports
from gateway.db.adapters.adapter_imports import ImportRow
from gateway.db.pool import Database
from gateway.domain.errors import Conflict, InvalidRequest, Overloaded
from gateway.support.process import make_private_folder

SYNC_BYTES = 8 << 20
"""The number of bytes after which the received bytes are made durable and counted."""
SYNC_S = 5.0
"""Seconds after which the received bytes are made durable and counted."""

RETRY_AFTER_S = 60.0
"""Seconds after which a client may repeat an upload that a full disk refused."""

LOCK_WAIT_S = 1.0
"""Seconds to wait for the file's lock: a request whose connection broke just now still counts its bytes."""

OFFSET_HEADER = "upload-offset"

NOT_AS_ANNOUNCED = (
    "The SHA-256 of the received bytes differs from the SHA-256 that the import announced. Start a new import."
)

log = structlog.get_logger(__name__)


class Uploads:
    """The resumable uploads of a machine. folder: made on demand; all gateways of the machine share it."""

    def __init__(self, database: Database, folder: Path) -> None:
        self._database = database
        self._folder = folder

    def whole_file(self, imported: ImportRow) -> Path:
        """Return the file of an import whose bytes have all arrived.

        Raises Conflict: when this machine does not have the whole file.
        """
        path = self._path(imported)
        if not path.is_file() or path.stat().st_size != imported.size_bytes:
            raise _elsewhere()
        return path

    async def verified_file(self, imported: ImportRow) -> Path:
        """Return the file of a completed upload, after a check of the SHA-256 that the client announced, if it did.

        Raises as `whole_file`.
        Raises InvalidRequest: when the bytes have another SHA-256; the import is rejected then.
        """
        path = self.whole_file(imported)
        if imported.sha256 is not None and await asyncio.to_thread(_sha256, path) != imported.sha256:
            async with self._database.acquire() as conn:
                await adapter_imports.end_import(conn, imported.id, "rejected", NOT_AS_ANNOUNCED)
            raise InvalidRequest(NOT_AS_ANNOUNCED, param="file", code="adapter_rejected")
        return path

    def discard(self, imported: ImportRow) -> None:
        """Delete the bytes of an upload that have arrived."""
        self._path(imported).unlink(missing_ok=True)

    async def append(self, imported: ImportRow, offset: int, chunks: AsyncIterator[bytes]) -> None:
        """Add bytes to an upload at an offset. Bytes that arrived before `chunks` ends in an error are kept.

        Raises Conflict: when another offset is next, another request is writing, or the import is over or is no upload.
        Raises InvalidRequest: when the upload becomes larger than was announced.
        Raises Overloaded: when the disk is full.
        """
        if imported.state != "receiving" or imported.size_bytes is None:
            raise _import_over_error()
        async with self._locked(imported) as file:
            known = await self._find_import(imported)
            if known is None or known.state != "receiving":
                raise _import_over_error()
            if offset != known.received_bytes:
                raise Conflict(
                    f"The upload continues at byte {known.received_bytes}, not at byte {offset}.",
                    param=OFFSET_HEADER,
                    code="wrong_offset",
                )
            assert known.size_bytes is not None, "it never changes"
            _cut(file, offset)
            await self._write(imported, file, offset, known.size_bytes, chunks)

    async def sweep(self) -> None:
        """Delete the bytes of imports that are over."""
        if not self._folder.is_dir():
            return
        found = [path.name for path in self._folder.iterdir()]
        async with self._database.acquire() as conn:
            needed = await adapter_imports.still_receiving(conn, found)
        for name in set(found) - needed:
            (self._folder / name).unlink(missing_ok=True)

    async def _find_import(self, imported: ImportRow) -> ImportRow | None:
        async with self._database.acquire() as conn:
            return await adapter_imports.find_import(conn, imported.project_id, imported.id)

    async def _write(
        self, imported: ImportRow, file: BinaryIO, offset: int, size_bytes: int, chunks: AsyncIterator[bytes]
    ) -> None:
        recorded, recorded_s = offset, time.monotonic()
        try:
            async for chunk in chunks:
                if offset + len(chunk) > size_bytes:
                    raise InvalidRequest(
                        f"The body exceeds the {size_bytes} bytes that the import announced.", code="too_many_bytes"
                    )
                await _on_disk(_write_all, file, chunk)
                offset += len(chunk)
                if offset - recorded >= SYNC_BYTES or time.monotonic() - recorded_s >= SYNC_S:
                    # Reported first: the system reports a failed write to disk once, and not again later.
                    recorded, recorded_s = offset, time.monotonic()
                    await self._record_received(imported, file, offset)
        finally:
            if offset > recorded:
                await self._record_received(imported, file, offset)

    async def _record_received(self, imported: ImportRow, file: BinaryIO, received_bytes: int) -> None:
        await _on_disk(os.fsync, file.fileno())
        async with self._database.acquire() as conn:
            if not await adapter_imports.touch_import(conn, imported.id, received_bytes=received_bytes):
                raise _import_over_error()

    def _path(self, imported: ImportRow) -> Path:
        return self._folder / imported.id

    @asynccontextmanager
    async def _locked(self, imported: ImportRow) -> AsyncIterator[BinaryIO]:
        """Yield the file of an import, locked; the import's first request makes the file."""
        make_private_folder(self._folder)
        flags = os.O_RDWR | os.O_CLOEXEC | (0 if imported.received_bytes else os.O_CREAT)
        try:
            descriptor = os.open(self._path(imported), flags, 0o600)
        except FileNotFoundError:
            raise _elsewhere() from None
        with os.fdopen(descriptor, "r+b", buffering=0) as file:
            await _lock(file)
            yield file


async def _on_disk(work: Callable[..., object], *arguments: object) -> None:
    """Do work on a disk without holding up the event loop, which a slow disk would.

    Raises Overloaded: when the disk refuses.
    """
    try:
        await asyncio.to_thread(work, *arguments)
    except OSError as error:
        log.error("upload_not_written", error=str(error))
        raise Overloaded(
            "The server cannot write the upload at the moment. The bytes received before are kept: resume later.",
            retry_after_s=RETRY_AFTER_S,
        ) from None


def _write_all(file: BinaryIO, chunk: bytes) -> None:
    """Write all of a chunk.

    An unbuffered file takes as much as there is room for, and refuses only the next write.

    Raises OSError: when the file takes no more.
    """
    rest = memoryview(chunk)
    while rest:
        rest = rest[file.write(rest) :]


async def _lock(file: BinaryIO) -> None:
    """Lock a file. The lock is tried repeatedly, since the kernel has no wait for it with a time limit.

    Raises Conflict: when another request holds the lock for LOCK_WAIT_S.
    """
    deadline_s = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                raise Conflict(
                    "Another request is sending bytes of this import. Wait until it ends, or end it.",
                    param="import_id",
                    code="import_busy",
                ) from None
            await asyncio.sleep(LOCK_WAIT_S / 20)
        else:
            return


def _cut(file: BinaryIO, offset: int) -> None:
    """Truncate an upload's file to `offset` bytes, and seek to its end.

    Raises Conflict: when the file is shorter, since another machine has received the rest.
    """
    if os.fstat(file.fileno()).st_size < offset:
        raise _elsewhere()
    file.truncate(offset)
    file.seek(offset)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _import_over_error() -> Conflict:
    return Conflict(
        "This import takes no bytes: it has ended, or it was not begun as an upload in pieces.", param="import_id"
    )


def _elsewhere() -> Conflict:
    return Conflict(
        "The bytes received so far are not on this gateway's machine, or were deleted. Send the rest to a "
        "gateway of the machine that received them, or start a new import.",
        param="import_id",
        code="import_elsewhere",
    )
