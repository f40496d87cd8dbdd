"""The file store: pieces of bytes by name, in a folder that all gateways share. Knows nothing of their content.

`gateway.files.bucket` is the same over a bucket.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from adapters.errors import StoreFailure
from gateway.support.process import make_private_folder

_NAME = re.compile(r"[a-z0-9_]{1,64}")
_TEMPORARY = ".temporary-"


class Pieces(Protocol):
    """A file store, which holds pieces of parts. Every method may take long.

    Raises StoreFailure: when the store does not answer.
    """

    def write(self, project_id: str, part_id: str, number: int, data: bytes) -> None:
        """Write one piece, durable when this returns. A piece that is there already is replaced."""

    def read(self, project_id: str, part_id: str, number: int) -> bytes | None:
        """Return one piece; None where there is none."""

    def remove(self, project_id: str, part_id: str) -> None:
        """Delete all pieces of a part, if there are any."""

    def parts(self) -> Iterator[tuple[str, str]]:
        """Yield (project, id) of every part of which there are pieces."""

    def numbers(self, project_id: str, part_id: str) -> list[int]:
        """Return the numbers of the pieces that a part has, sorted."""


class FolderPieces:
    """Pieces in files `<project>/<part>/<number>` below root, which is made on demand."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def write(self, project_id: str, part_id: str, number: int, data: bytes) -> None:
        """Write a piece of a part, durable once this returns."""
        folder = self._folder(project_id, part_id)
        temporary = folder / f"{_TEMPORARY}{secrets.token_hex(8)}"
        with _failures("written"):
            if not folder.is_dir():
                make_private_folder(folder)
                for above in (self._root, folder.parent):
                    _sync(above)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(folder / str(number))
            _sync(folder)

    def read(self, project_id: str, part_id: str, number: int) -> bytes | None:
        """Return a piece of a part; None where there is none."""
        with _failures("read"):
            try:
                return (self._folder(project_id, part_id) / str(number)).read_bytes()
            except FileNotFoundError:
                return None

    def remove(self, project_id: str, part_id: str) -> None:
        """Delete all pieces of a part."""
        with _failures("changed"), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._folder(project_id, part_id))

    def parts(self) -> Iterator[tuple[str, str]]:
        """Yield the project and the id of every part."""
        with _failures("listed"):
            for project in sorted(self._root.iterdir()) if self._root.is_dir() else ():
                for part in sorted(project.iterdir()):
                    yield project.name, part.name

    def numbers(self, project_id: str, part_id: str) -> list[int]:
        """Return the numbers of a part's pieces in ascending order."""
        with _failures("listed"), contextlib.suppress(FileNotFoundError):
            names = [path.name for path in self._folder(project_id, part_id).iterdir()]
            return sorted(int(name) for name in names if name.isdecimal())
        return []

    def _folder(self, project_id: str, part_id: str) -> Path:
        return self._root / check_name(project_id) / check_name(part_id)


def check_name(name: str) -> str:
    """Return the name, after a check that it can be a part of a path. Only gateways make ids, so a bad one is a bug."""
    assert _NAME.fullmatch(name), f"{name[:100]!r} is no id"
    return name


@contextlib.contextmanager
def _failures(doing: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreFailure(f"the file store could not be {doing}: {error}") from None


def _sync(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
