"""The interface of places for exports, and the folder as a place. The bucket as a place is in `object_store`.

Files are put under a temporary name until whole, the manifest last, so half an export is never taken for a whole one.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Protocol

from gateway.exports.manifest import Manifest
from gateway.exports.produce import Export
from gateway.support.process import make_private_folder, naming_file


class Place(Protocol):
    """Files by name. A file that is being put does not show under its name before it is whole and durable."""

    async def put(self, name: str, chunks: AsyncIterator[bytes]) -> None:
        """Put a file, durable once this returns; one of the same name is replaced."""

    async def remove(self, name: str) -> None:
        """Remove a file. Do nothing where there is no such file."""


async def put_export(export: Export, place: Place) -> Manifest:
    """Put an export's file and its manifest in a place, instead of those that were there before.

    The old manifest is removed first: it must not stand beside a file that is not its own, whatever process dies in
    between.

    Raises the errors of the export: when its rows cannot be read.
    Raises the errors of the place: when it cannot be written.
    """
    await place.remove(export.request.manifest_name)
    await place.put(export.request.file_name, export.chunks())
    manifest = export.manifest()
    await place.put(export.request.manifest_name, _one_chunk(manifest.encode()))
    return manifest


async def _one_chunk(chunk: bytes) -> AsyncIterator[bytes]:
    yield chunk


class Folder:
    """A folder of this machine as a place, made on demand; files are readable by their owner alone.

    Its methods raise OSError.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    async def put(self, name: str, chunks: AsyncIterator[bytes]) -> None:
        """Write a file under a temporary name, sync it and rename it; the temporary file is removed after a failure."""
        await asyncio.to_thread(make_private_folder, self._root)
        path, temporary = self._root / name, self._root / f".{name}.{secrets.token_hex(4)}.partial"
        try:
            file = await asyncio.to_thread(_create, temporary)
            try:
                async for chunk in chunks:
                    await asyncio.to_thread(_write, file, chunk, path)
                await asyncio.to_thread(_sync, file, path)
            finally:
                with naming_file(path):
                    file.close()
            await asyncio.to_thread(_rename, temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    async def remove(self, name: str) -> None:
        """Remove a file of the folder. Do nothing where there is no such file."""
        await asyncio.to_thread(_remove, self._root / name)


def _create(path: Path) -> IO[bytes]:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


def _write(file: IO[bytes], chunk: bytes, path: Path) -> None:
    with naming_file(path):
        file.write(chunk)


def _sync(file: IO[bytes], path: Path) -> None:
    with naming_file(path):
        file.flush()
        os.fsync(file.fileno())


def _rename(source: Path, target: Path) -> None:
    source.replace(target)
    _sync_folder(target.parent)


def _remove(path: Path) -> None:
    if path.exists():
        path.unlink()
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
