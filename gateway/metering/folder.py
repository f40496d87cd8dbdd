"""The folders of journals: `<root>/<n>/`, each owned by one process, with segments of which only the last one grows.

A folder is owned through a lock that the kernel gives back however its holder ends. Knows nothing about records.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import Self

from gateway.support.process import make_private_folder

LOCK_NAME = "lock"
SUFFIX = ".journal"
SPENT_SUFFIX = ".spent"
"""The suffix of a segment whose usage is in the ledger or in another journal. Nothing needs it, unless the database is
put back to a moment before now."""

DAMAGED_SUFFIX = ".damaged"


class Segment:
    """One append-only file of a journal.

    Each method raises OSError if the disk fails; after that nothing more may be appended.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_bytes = 0
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._folder_is_synced = False

    def append(self, data: bytes) -> None:
        """Write data to the file, without waiting for the disk.

        The data survives this process from now on, and a crash of the machine after `sync`.
        """
        written = os.write(self._file, data)
        while written < len(data):
            written += os.write(self._file, memoryview(data)[written:])
        self.num_bytes += written

    def sync(self) -> None:
        """Return once all that was appended before is on disk, and the file's name with it. Blocks: for a thread."""
        os.fdatasync(self._file)
        if not self._folder_is_synced:
            sync_folder(self.path.parent)
            self._folder_is_synced = True

    def close(self) -> None:
        """Close the segment's file."""
        os.close(self._file)


class JournalFolder:
    """A folder of a journal that this process owns until `release`."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def try_claim(cls, path: Path) -> Self | None:
        """Claim a folder, which is created if needed. Return None while another process owns it.

        Raises OSError: when the folder cannot be made or locked.
        """
        make_private_folder(path)
        lock = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        return cls(path, lock)

    def release(self) -> None:
        """Give up the ownership of the folder, so that another process can claim it."""
        os.close(self._lock)

    def segments(self) -> list[Path]:
        """Return the segments, oldest first."""
        return segments_in(self.path)

    def new_segment(self) -> Segment:
        """Make the next segment's file.

        Raises OSError: when the file cannot be made.
        """
        taken = [int(path.stem) for path in (*self.segments(), *spent_segments_in(self.path))]
        number = max(taken, default=0) + 1
        return Segment(self.path / f"{number:012}{SUFFIX}")


def folders_in(root: Path) -> list[Path]:
    """Return all folders of journals in root, owned or not.

    Raises OSError: when root cannot be read.
    """
    return sorted(path for path in root.iterdir() if path.is_dir())


def segments_in(path: Path) -> list[Path]:
    """Return the segments of a folder, owned or not, oldest first.

    Raises OSError: when the folder cannot be read.
    """
    return sorted(each for each in path.iterdir() if each.suffix == SUFFIX)


def spent_segments_in(path: Path) -> list[Path]:
    """Return the spent segments of a folder, oldest first.

    Raises OSError: when the folder cannot be read.
    """
    return sorted(each for each in path.iterdir() if each.suffix == SPENT_SUFFIX)


def put_aside(segment: Path, max_bytes: int) -> None:
    """Rename a segment as spent, and delete the folder's oldest spent segments beyond max_bytes together.

    max_bytes: 0: the segment is deleted. A segment that does not exist any more is passed over.

    Raises OSError: when a file cannot be renamed or deleted.
    """
    if max_bytes == 0:
        segment.unlink(missing_ok=True)
        return
    with contextlib.suppress(FileNotFoundError):
        segment.rename(segment.with_suffix(SPENT_SUFFIX))
    num_bytes = 0
    for path in reversed(spent_segments_in(segment.parent)):
        num_bytes += path.stat().st_size
        if num_bytes > max_bytes:
            path.unlink()


def sync_folder(path: Path) -> None:
    """Return once the names in a folder are on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
