"""One `serve` per data folder: a lock the kernel gives back however its holder ends, and who holds it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class DataFolderInUse(RuntimeError):
    """Another `serve` runs on this data folder; the message names its pid and URL."""


@contextmanager
def data_folder_lock(data_dir: Path, url: str) -> Iterator[None]:
    """Hold the data folder. url: what a second start is told. Raises DataFolderInUse."""
    path = data_dir / "serve.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 4096, 0).decode(errors="replace").strip() or "a process that just started"
            raise DataFolderInUse(f"{data_dir} is already served by {holder}") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"pid {os.getpid()} at {url}\n".encode(), 0)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)
