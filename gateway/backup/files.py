"""Copies files for a backup, durable and private; and the adapters, whose content never changes."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from adapters.errors import AdapterMissing
from adapters.store import FILE_NAMES, AdapterStore
from gateway.backup.manifest import ADAPTERS, COPY_BYTES, KEYS, TENANTS_FILES
from gateway.files.pieces import Pieces
from gateway.support.process import make_private_folder, naming_file, write_private


def copy_adapters(store: AdapterStore, digests: Iterable[str], backup: Path) -> list[str]:
    """Copy the adapters that are not in the backup yet. Return the digests that the store does not have."""
    missing = []
    for digest in digests:
        target = backup / ADAPTERS / digest
        if target.is_dir():
            continue
        try:
            with store.reading(digest) as folder:
                _copy_adapter(folder, make_folder(target))
        except AdapterMissing:  # removed before or while it was copied
            shutil.rmtree(target, ignore_errors=True)
            missing.append(digest)
    return missing


def _copy_adapter(source: Path, target: Path) -> None:
    for name in FILE_NAMES:
        try:
            file = (source / name).open("rb")
        except FileNotFoundError as error:
            raise AdapterMissing(source.name) from error
        with file:
            write_durably(file, target / name)


def copy_pieces(pieces: Pieces, backup: Path) -> None:
    """Copy the pieces of tenants' files that are not in the backup yet, encrypted as they are."""
    for project_id, part_id in pieces.parts():
        folder = make_folder(backup / TENANTS_FILES / project_id / part_id)
        for number in pieces.numbers(project_id, part_id):
            if (folder / str(number)).exists():
                continue
            data = pieces.read(project_id, part_id, number)
            if data is not None:  # else deleted just now
                write_durably(io.BytesIO(data), folder / str(number))


def restore_pieces(backup: Path, pieces: Pieces, parts: Iterable[tuple[str, str]]) -> None:
    """Put back the pieces of the parts that the restored database names."""
    for project_id, part_id in parts:
        folder = backup / TENANTS_FILES / project_id / part_id
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            pieces.write(project_id, part_id, int(path.name), path.read_bytes())


def copy_keys(key_files: Iterable[Path], backup: Path) -> None:
    """Copy the key files that exist, over those that were copied before and differ."""
    for path in key_files:
        target = backup / KEYS / path.name
        if path.is_file() and not (target.is_file() and target.read_bytes() == path.read_bytes()):
            make_folder(backup / KEYS)
            write_private(target, path.read_text())


def write_durably(source: IO[bytes], target: Path) -> None:
    """Write a new file, readable by its owner alone, on disk when this returns."""
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with naming_file(target), os.fdopen(descriptor, "wb") as writer:
        shutil.copyfileobj(source, writer, COPY_BYTES)
        writer.flush()
        os.fsync(writer.fileno())


@contextmanager
def removed_on_failure(folder: Path) -> Iterator[None]:
    """Yield an empty folder, made on demand; restore its former state when something fails, though not after a kill."""
    is_new = not folder.exists()
    try:
        make_folder(folder).chmod(0o700)
        yield
    except Exception:
        for path in folder.iterdir() if folder.is_dir() else ():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if is_new:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def make_folder(path: Path) -> Path:
    """Make a folder that its owner alone may read."""
    return make_private_folder(path)


def sync_folders(root: Path) -> None:
    """Make the names of everything below root durable."""
    for path in (root, *(path for path in root.rglob("*") if path.is_dir())):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
