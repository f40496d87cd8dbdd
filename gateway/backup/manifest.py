"""The manifest of a backup: its content, file by file.

A folder without this file, or with other files than the manifest lists, is no backup.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from gateway.postgres.dump import Contents

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
DATABASE = "database.dump"
ADAPTERS = "adapters"
TENANTS_FILES = "files"
JOURNAL = "journal"
KEYS = "keys"
COPY_BYTES = 1 << 20


class BackupError(Exception):
    """The error for a backup that cannot be taken, is incomplete, or cannot be restored; the message is one line."""


class FileEntry(msgspec.Struct, frozen=True):
    """A file of a backup."""

    path: str
    """The path relative to the backup, with slashes."""
    num_bytes: int
    sha256: str
    """The digest in hexadecimal."""


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a backup."""

    format_version: int
    version: str
    """The version of Lorikeet that made the backup."""
    made_at: str
    """The time in the format of RFC 3339."""
    contents: Contents
    missing_digests: tuple[str, ...]
    """Adapters that the database named but the store did not have, such as one that was removed at that very moment."""
    files: tuple[FileEntry, ...]

    @property
    def num_bytes(self) -> int:
        """The size of all files."""
        return sum(file.num_bytes for file in self.files)

    @property
    def digests(self) -> list[str]:
        """The digests of the adapters in the backup, sorted."""
        paths = (Path(file.path).parts for file in self.files)
        return sorted({parts[1] for parts in paths if parts[0] == ADAPTERS})


def read_manifest(folder: Path) -> BackupManifest:
    """Read the manifest of a backup.

    Raises BackupError: when the manifest is missing or damaged, or has another format.
    """
    try:
        content = (folder / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise BackupError(f"{folder} is not a whole backup: it has no {MANIFEST}") from None
    try:
        manifest = msgspec.json.decode(content, type=BackupManifest)
    except msgspec.MsgspecError as error:
        raise BackupError(f"{folder / MANIFEST} is damaged: {error}") from None
    if manifest.format_version != FORMAT_VERSION:
        raise BackupError(f"{folder} has format {manifest.format_version}; this version reads format {FORMAT_VERSION}")
    return manifest


def verify(folder: Path) -> BackupManifest:
    """Read every file of a backup again, and return its manifest.

    Raises BackupError: when a file is missing, changed, or does not belong to the backup; the error names the first.
    """
    manifest = read_manifest(folder)
    for file in manifest.files:
        path = folder / file.path
        if not path.resolve().is_relative_to(folder.resolve()):
            raise BackupError(f"the manifest names a file outside of the backup: {file.path}")
        if not path.is_file():
            raise BackupError(f"{file.path} is missing")
        if hash_file(folder, file.path) != file:
            raise BackupError(f"{file.path} is damaged: its size or its SHA-256 is not the manifest's")
    known = {file.path for file in manifest.files} | {MANIFEST}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.relative_to(folder).as_posix() not in known:
            raise BackupError(f"{path.relative_to(folder)} does not belong to this backup")
    return manifest


def hash_file(folder: Path, relative: str) -> FileEntry:
    """Return a file's entry in the manifest. relative: the file's path in the folder."""
    digest, num_bytes = hashlib.sha256(), 0
    with (folder / relative).open("rb") as file:
        while chunk := file.read(COPY_BYTES):
            digest.update(chunk)
            num_bytes += len(chunk)
    return FileEntry(relative, num_bytes, digest.hexdigest())
