"""Adapters on disk, by the digest of their content: `root/<digest>/` holds the two files that PEFT saved.

A folder appears under its digest only when it is whole and durable, so a reader never sees half an adapter, even if a
writer dies. Names from outside never become paths: the only part of a path that the store takes is a digest of 64 hex
digits. Many processes may share one root. Knows nothing of tenants, names and versions.

`adapters.remote_store` is such a store in a bucket.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from adapters.digest import canonical_digest
from adapters.errors import AdapterDamaged, AdapterMissing, AdapterRejected
from adapters.peft_format import FILE_NAMES as FILE_NAMES
from adapters.safe_file import open_regular

COPY_BYTES = 1024 * 1024

_DIGEST = re.compile(r"[0-9a-f]{64}")
_TEMPORARY_PREFIX = ".temporary-"


def is_digest(text: str) -> bool:
    """Tell whether a text has the form of an adapter's digest."""
    return _DIGEST.fullmatch(text) is not None


class AdapterStore:
    """A store in the folder root, which is made if it does not exist."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.sweep()

    def add(self, folder: Path) -> str:
        """Copy the adapter of a folder into the store, and return its digest; the same content is stored once.

        The copy is what gets checked, so that nobody can change the files in between.

        Raises AdapterRejected: when the adapter is one that `read_adapter` refuses.
        """
        with self.workspace() as workspace:
            copy = workspace / "adapter"
            copy.mkdir(mode=0o700)
            for name in FILE_NAMES:
                with open_regular(folder / name) as reader, create_private(copy / name) as writer:
                    shutil.copyfileobj(reader, writer, COPY_BYTES)
            digest = canonical_digest(copy)
            self.keep(copy, digest)
        return digest

    @contextlib.contextmanager
    def workspace(self) -> Iterator[Path]:
        """Make an empty folder that nobody else reads, on the store's own file system, for the time of a context.

        The folder is gone afterwards with all that is left in it. It is locked meanwhile (flock(2)): `sweep` deletes
        the folders whose process died.
        """
        with contextlib.ExitStack() as stack:
            while True:
                folder = Path(tempfile.mkdtemp(prefix=_TEMPORARY_PREFIX, dir=self._root))
                if (lock := lock_folder(folder)) is not None:
                    break  # else it was swept before it was locked
            stack.callback(os.close, lock)
            stack.callback(shutil.rmtree, folder)
            yield folder

    def keep(self, folder: Path, digest: str) -> None:
        """Move a folder inside a workspace, which holds exactly the two files of this digest, into the store.

        The files are made durable, and only then the folder appears under its digest, without a copy. Content that the
        store has already stays as it is, unless it is damaged.
        """
        if not is_digest(digest):
            raise ValueError(f"{digest[:100]!r} is not a digest")
        for name in FILE_NAMES:
            _sync(folder / name)
        _sync(folder)
        target = self._root / digest
        while folder.exists():
            try:
                folder.rename(target)
            except OSError as error:
                # A folder that is not empty is never renamed over: then the content is already there.
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            _sync(self._root)
            try:
                check_content(target, digest)  # the caller's own, too: the time is not to tell what the store had
                return
            except AdapterDamaged:
                if folder.exists():
                    with contextlib.suppress(AdapterMissing):
                        AdapterStore.remove(self, digest)

    @contextlib.contextmanager
    def reading(self, digest: str) -> Iterator[Path]:
        """Yield the folder of an adapter, to be read only, and only within the context.

        Raises AdapterMissing: when the store does not hold the adapter.
        """
        yield self.path(digest)

    def path(self, digest: str) -> Path:
        """Return the folder of an adapter, to be read only.

        Raises AdapterMissing: when the store does not hold the adapter.
        """
        if not self.holds(digest):
            raise AdapterMissing(digest)
        return self._root / digest

    def holds(self, digest: str) -> bool:
        """Tell whether the adapter is in the store now; another process may remove it at any time."""
        return is_digest(digest) and (self._root / digest).is_dir()

    def remove(self, digest: str) -> None:
        """Delete an adapter, which disappears from the store at once.

        Raises AdapterMissing: when the store does not hold the adapter.
        """
        folder = self.path(digest)
        with self.workspace() as workspace:
            try:
                folder.rename(workspace / "adapter")
            except FileNotFoundError:
                raise AdapterMissing(digest) from None
            _sync(self._root)

    def digests(self) -> list[str]:
        """Return the digest of every adapter of the store, sorted."""
        return sorted(path.name for path in self._root.iterdir() if is_digest(path.name))

    def size_bytes(self, digest: str) -> int:
        """Return the number of bytes of both files.

        Raises AdapterMissing: when the store does not hold the adapter.
        """
        folder = self.path(digest)
        try:
            return sum((folder / name).stat().st_size for name in FILE_NAMES)
        except FileNotFoundError:
            raise AdapterMissing(digest) from None

    def verify(self, digest: str) -> None:
        """Read an adapter again in full.

        Raises AdapterMissing: when the store does not hold the adapter.
        Raises AdapterDamaged: when the content is not what was added.
        """
        check_content(self.path(digest), digest)

    def sweep(self) -> None:
        """Delete the workspaces of processes that died."""
        for folder in self._root.glob(f"{_TEMPORARY_PREFIX}*"):
            with contextlib.suppress(FileNotFoundError, BlockingIOError):
                lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)
                finally:
                    os.close(lock)


def create_private(path: Path) -> BinaryIO:
    """Make a file that its owner alone may read and write, and open it for writing."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb")


def lock_folder(folder: Path) -> int | None:
    """Return a descriptor that holds a shared lock on a folder until the descriptor is closed.

    None is returned where there is no such folder, or where the folder went before it was locked.
    """
    with contextlib.suppress(FileNotFoundError):
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_SH)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(folder.stat(), os.fstat(lock)):
                return lock
        os.close(lock)
    return None


def check_content(folder: Path, digest: str) -> None:
    """Check that a folder of the store holds the content that its digest stands for.

    Raises AdapterDamaged: when the content is another or cannot be read.
    """
    try:
        found = canonical_digest(folder)
    except AdapterRejected as refusal:
        raise AdapterDamaged(digest, f"can no longer be read: {'; '.join(refusal.reasons)}") from None
    if found != digest:
        raise AdapterDamaged(digest, f"has changed: its content is {found} now")


def _sync(path: Path) -> None:
    """Make a file's content, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
