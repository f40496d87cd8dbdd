"""Reads the watched folder's files so that nobody who may write there can make the gateway read other files.

<folder>/<tenant>/<adapter>/adapter_config.json, adapter_model.safetensors

Everything below the folder is opened relative to the folder opened before and never through a link, so the meaning of a
name cannot change in between; hard links are refused, since their bytes may be somebody else's. Names that begin with a
dot are passed over: copying programs use them. Knows nothing of tenants, nor of the files' meaning.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import msgspec

from adapters.store import FILE_NAMES

MAX_FOLDERS = 10_000
"""The most folders of adapters; folders beyond are not looked at."""

COPY_BYTES = 1 << 20

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class FileStamp(msgspec.Struct, frozen=True, array_like=True):
    """The facts by which a change of a file is noticed, as stat(2) has them; times in ns."""

    device: int
    inode: int
    mode: int
    num_links: int
    """The number of hard links to the file."""
    size_bytes: int
    modified_ns: int
    """The time of the last change of the content, in Unix nanoseconds."""
    changed_ns: int
    """The time of the last change of the inode, in Unix nanoseconds."""


class AdapterFiles(msgspec.Struct, frozen=True):
    """An adapter's two files as they were at one moment."""

    tenant: str
    name: str
    stamps: tuple[FileStamp, ...]
    problem: str | None
    """The reason why the files' bytes will not be read; None: they will be."""

    @property
    def unread_fingerprint(self) -> str:
        """The fingerprint of the files without their bytes."""
        return "unread " + hashlib.sha256(msgspec.json.encode((self.stamps, self.problem))).hexdigest()


def find_adapters(root: Path, max_bytes: int) -> list[AdapterFiles]:
    """Return every adapter's folder that has both files, without reading the files.

    max_bytes: the most bytes of both files together.

    Raises OSError: when the root cannot be read.
    """
    found: list[AdapterFiles] = []
    with _root(root) as root_fd:
        for tenant in _folders(root_fd):
            with _opened(tenant, root_fd, _FOLDER_FLAGS) as tenant_fd:
                for name in _folders(tenant_fd):
                    with _opened(name, tenant_fd, _FOLDER_FLAGS) as folder_fd:
                        stamps = _stamps(folder_fd)
                    if stamps is not None:
                        found.append(AdapterFiles(tenant, name, stamps, _problem(stamps, max_bytes)))
    return found[:MAX_FOLDERS]


def read_and_copy(root: Path, seen: AdapterFiles, into: Path | None) -> str | None:
    """Return the fingerprint of the bytes of an adapter's two files, and copy both to the folder `into` if it is given.

    Return None if the files are not those that were seen, or change meanwhile.

    Raises OSError: when `into` cannot be written.
    """
    total = hashlib.sha256()
    with (
        _root(root) as root_fd,
        _opened(seen.tenant, root_fd, _FOLDER_FLAGS) as tenant_fd,
        _opened(seen.name, tenant_fd, _FOLDER_FLAGS) as folder_fd,
    ):
        for name, stamp in zip(FILE_NAMES, seen.stamps, strict=True):
            with _opened(name, folder_fd, _FILE_FLAGS) as file_fd:
                if file_fd is None or _stamp(os.fstat(file_fd)) != stamp:
                    return None
                total.update(_digest_and_copy(file_fd, stamp.size_bytes, into / name if into else None))
                if _stamp(os.fstat(file_fd)) != stamp:
                    return None
    return total.hexdigest()


def _digest_and_copy(file_fd: int, size_bytes: int, into: Path | None) -> bytes:
    """Return the digest of a file's first size_bytes bytes, and copy them to `into` where it is given."""
    digest = hashlib.sha256()
    with into.open("xb") if into else nullcontext() as copy:
        while size_bytes > 0 and (chunk := os.read(file_fd, min(size_bytes, COPY_BYTES))):
            digest.update(chunk)
            size_bytes -= len(chunk)
            if copy is not None:
                copy.write(chunk)
    return digest.digest()


def _problem(stamps: tuple[FileStamp, ...], max_bytes: int) -> str | None:
    for name, stamp in zip(FILE_NAMES, stamps, strict=True):
        if not stat.S_ISREG(stamp.mode):
            kind = "a symbolic link" if stat.S_ISLNK(stamp.mode) else "not a regular file"
            return f"{name} is {kind}"
        if stamp.num_links != 1:
            return f"{name} has other names as well (hard links): copy it instead"
    if sum(stamp.size_bytes for stamp in stamps) > max_bytes:
        return f"the adapter is larger than {max_bytes} bytes, the most that LORIKEET_MAX_ADAPTER_BYTES allows"
    return None


def _stamps(folder_fd: int | None) -> tuple[FileStamp, ...] | None:
    """Return the stamps of both files, without following a link; None where one is missing.

    folder_fd: the descriptor of the folder; None: there is no folder, and so no file.
    """
    if folder_fd is None:
        return None
    try:
        return tuple(_stamp(os.stat(name, dir_fd=folder_fd, follow_symlinks=False)) for name in FILE_NAMES)
    except OSError:
        return None


def _stamp(found: os.stat_result) -> FileStamp:
    return FileStamp(
        found.st_dev,
        found.st_ino,
        found.st_mode,
        found.st_nlink,
        found.st_size,
        found.st_mtime_ns,
        found.st_ctime_ns,
    )


def _folders(parent_fd: int | None) -> list[str]:
    """Return the names of the folders in a folder, sorted; without links to folders.

    parent_fd: the descriptor of the folder; None: there is no such folder, and the list is empty.
    """
    if parent_fd is None:
        return []
    with os.scandir(parent_fd) as entries:
        return sorted(
            entry.name
            for entry in entries
            if not entry.name.startswith(".") and entry.name.isprintable() and entry.is_dir(follow_symlinks=False)
        )


@contextmanager
def _root(root: Path) -> Iterator[int]:
    """Open the root folder, and yield its descriptor. The operator chose it, so it may be a link."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _opened(name: str, parent_fd: int | None, flags: int) -> Iterator[int | None]:
    """Open a file in a folder, and yield its descriptor; None where it is gone, a link by now, or may not be read.

    parent_fd: the descriptor of the folder; None: there is no such folder, and so no file. flags: as for `os.open`.
    """
    try:
        descriptor = os.open(name, flags, dir_fd=parent_fd) if parent_fd is not None else None
    except OSError:
        descriptor = None
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)
