"""The data folder: made at the first start, and held by one `serve` with a lock.

The kernel gives the lock back however its holder ends.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.support import process

LOCK_NAME = "serve.lock"
RESTORE_MARKER = "restore.unfinished"
"""The name of the file that marks a data folder whose restore was interrupted."""

KERNEL_LOCKS = Path("/proc/locks")
_HOLDER = re.compile(r"pid (?P<pid>\d+) at (?P<url>https?://\S+)\n")


class DataFolderInUse(RuntimeError):
    """The error for a data folder on which another `serve` runs; the message names its pid and URL."""


class DataFolderUnusable(RuntimeError):
    """The error for a data folder that cannot be made or written; the message names the setting."""


def make_data_folder(data_dir: Path) -> None:
    """Make the data folder, if need be.

    Raises DataFolderUnusable: when the path is no folder, or the folder cannot be made.
    """
    try:
        process.make_data_folder(data_dir)
    except (FileExistsError, NotADirectoryError):
        raise DataFolderUnusable(f"LORIKEET_DATA_DIR={data_dir}: this path, or a part of it, is not a folder") from None
    except OSError as error:
        raise DataFolderUnusable(f"LORIKEET_DATA_DIR={data_dir}: {error.strerror}") from None


def refuse_half_restored(data_dir: Path) -> None:
    """Check that no interrupted restore has left the data folder incomplete.

    Raises DataFolderUnusable: when one was: a server would go on with half of the data.
    """
    if (data_dir / RESTORE_MARKER).exists():
        raise DataFolderUnusable(
            f"a restore into {data_dir} did not finish: run `lorikeet restore --force` with the same backup again"
        )


@contextmanager
def data_folder_lock(data_dir: Path, url: str) -> Iterator[None]:
    """Make the data folder, if need be, and hold its lock.

    url: the address that an error shows to a second start.

    Raises DataFolderInUse: when another process holds the lock.
    Raises DataFolderUnusable: when the folder cannot be made or opened.
    """
    make_data_folder(data_dir)
    try:
        descriptor = os.open(data_dir / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DataFolderUnusable(f"LORIKEET_DATA_DIR={data_dir}: {error.strerror}") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 4096, 0).decode(errors="replace").strip() or "a process that just started"
            raise DataFolderInUse(f"{data_dir} is already served by {holder}") from None
        process.close_to_others(data_dir)  # an older version left some of it open
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {os.getpid()} at {url}\n".encode(), 0)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def running_url(data_dir: Path) -> str | None:
    """Return the URL at which the `serve` of this data folder serves; None if none does.

    The lock is only read: taking the lock to try it, however briefly, would make a `serve` that starts just then give
    up.

    Raises OSError: when the lock's file cannot be read.
    """
    try:
        with (data_dir / LOCK_NAME).open() as file:
            holder = _HOLDER.fullmatch(file.read(4096))
            inode = os.fstat(file.fileno()).st_ino
        held = KERNEL_LOCKS.read_text().splitlines()
    except FileNotFoundError:
        return None
    if holder is None:
        return None
    # The text of a killed holder stays behind, and its pid may be another process by now: the kernel knows better.
    # Devices are not compared: on some file systems the number here and in `stat` differ.
    for fields in map(str.split, held):
        if fields[1:2] == ["FLOCK"] and fields[4] == holder["pid"] and fields[5].endswith(f":{inode}"):
            return holder["url"]
    return None
