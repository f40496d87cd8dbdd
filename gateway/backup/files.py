"""Copies files for a backup: durable, private, and of journals that go on growing a moment that loses nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from adapters.errors import AdapterMissing
from adapters.store import FILE_NAMES, AdapterStore
from gateway.backup.manifest import ADAPTERS, COPY_BYTES, JOURNAL, BackupError
from gateway.metering.folder import LOCK_NAME

MAX_TRIES = 100


def copy_journals(root: Path, backup: Path) -> None:
    """Every journal under root, living ones included. A root that does not exist has none. Raises BackupError."""
    for folder in sorted(root.iterdir()) if root.is_dir() else []:
        if folder.is_dir():
            _copy_journal(folder, make_folder(backup / JOURNAL / folder.name))


def _copy_journal(source: Path, target: Path) -> None:
    """All segments of one moment. A new segment takes over what an older one holds, which then goes: only files that
    were all there at once are together whole. An open file stays readable after that."""
    for _ in range(MAX_TRIES):
        with ExitStack() as stack:
            try:
                names = sorted(path.name for path in source.iterdir() if path.name != LOCK_NAME)
                files = [(name, stack.enter_context((source / name).open("rb"))) for name in names]
            except FileNotFoundError:
                continue
            for name, file in files:
                write_durably(file, target / name)
            return
    raise BackupError(f"the journal {source} changes faster than it can be copied")


def copy_adapters(store: AdapterStore, digests: Iterable[str], backup: Path) -> list[str]:
    """Those that are not in the backup yet. Returns the digests that the store does not have."""
    missing = []
    for digest in digests:
        target = backup / ADAPTERS / digest
        if target.is_dir():
            continue
        try:
            _copy_adapter(store.path(digest), make_folder(target))
        except (AdapterMissing, FileNotFoundError):  # removed before or while it was copied
            shutil.rmtree(target, ignore_errors=True)
            missing.append(digest)
    return missing


def _copy_adapter(source: Path, target: Path) -> None:
    for name in FILE_NAMES:
        with (source / name).open("rb") as file:
            write_durably(file, target / name)


def write_durably(source: IO[bytes], target: Path) -> None:
    """A new file, readable by its owner alone, on disk when this returns."""
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as writer:
        shutil.copyfileobj(source, writer, COPY_BYTES)
        writer.flush()
        os.fsync(writer.fileno())


def make_folder(path: Path) -> Path:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def sync_folders(root: Path) -> None:
    """Make the names of everything below root durable."""
    for path in (root, *(path for path in root.rglob("*") if path.is_dir())):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
