"""The folders of journals: `<root>/<n>/`, each owned by one process, with segments of which only the last one grows.

A folder is owned through a lock that the kernel gives back however its holder ends. Knows nothing about records.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Self

from gateway.support.process import make_private_folder

LOCK_NAME = "lock"
SUFFIX = ".journal"
DAMAGED_SUFFIX = ".damaged"


class Segment:
    """One file that is only ever appended to. All methods raise OSError; after that nothing more may be appended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_bytes = 0
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._folder_is_synced = False

    def append(self, data: bytes) -> None:
        """Hand data to the kernel: it survives this process, and the machine after `sync`."""
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
    """One folder that this process owns until `release`."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def try_claim(cls, path: Path) -> Self | None:
        """Own a folder, which is made if need be. Return None while another process owns it. Raises OSError."""
        make_private_folder(path)
        lock = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return None
        return cls(path, lock)

    def release(self) -> None:
        """Let another process own the folder."""
        os.close(self._lock)

    def segments(self) -> list[Path]:
        """Return the segments, oldest first."""
        return segments_in(self.path)

    def new_segment(self) -> Segment:
        """Make the next segment's file.

        Raises OSError.
        """
        segments = self.segments()
        number = int(segments[-1].stem) + 1 if segments else 1
        return Segment(self.path / f"{number:012}{SUFFIX}")


def folders_in(root: Path) -> list[Path]:
    """Return all folders of journals in root, owned or not. Raises OSError."""
    return sorted(path for path in root.iterdir() if path.is_dir())


def segments_in(path: Path) -> list[Path]:
    """Return the segments of a folder, owned or not, oldest first.

    Raises OSError.
    """
    return sorted(each for each in path.iterdir() if each.suffix == SUFFIX)


def sync_folder(path: Path) -> None:
    """Return once the names in a folder are on disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
