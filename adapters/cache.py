"""Adapters that one machine keeps of a remote store: a folder that its processes share, bounded in bytes.

The least recently read leave first, never one that somebody is reading. So the cache may exceed its bound while
adapters are being read or one has just come. A reader holds a shared lock on the adapter's folder (flock(2)), which the
kernel releases if the reader dies. Knows nothing of where adapters come from.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from adapters.errors import AdapterMissing
from adapters.store import AdapterStore, create_private, lock_folder

LOCK_NAME = ".lock"


class Cache:
    """The adapters of a remote store that a machine keeps: looked up, locked while they are used, and evicted."""

    def __init__(self, root: Path, max_bytes: int) -> None:
        self._root = root
        self._max_bytes = max_bytes
        self._store = AdapterStore(root)

    def lock(self, digest: str) -> int | None:
        """Return a descriptor that keeps the adapter in the cache until the descriptor is closed.

        Return None where the cache has no such adapter.
        """
        folder = self._root / digest
        lock = lock_folder(folder)
        if lock is not None:
            os.utime(lock)
        return lock

    def put(self, folder: Path, digest: str) -> int:
        """Move a folder into the cache as `AdapterStore.keep` does, and return its lock as `lock` does.

        Raises AdapterMissing: when the adapter is evicted before it is locked.
        """
        with self._write_lock():
            self._make_room(sum(path.stat().st_size for path in folder.iterdir()))
            while True:
                try:
                    self._store.keep(folder, digest)
                except FileNotFoundError:
                    raise AdapterMissing(digest) from None
                if (lock := self.lock(digest)) is not None:
                    return lock

    def evict(self, digest: str) -> bool:
        """Remove the adapter from the cache; return False if somebody is reading the adapter, which then stays."""
        try:
            lock = os.open(self._root / digest, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(AdapterMissing):
                self._store.remove(digest)
        except BlockingIOError:
            return False
        finally:
            os.close(lock)
        return True

    @contextlib.contextmanager
    def _write_lock(self) -> Iterator[None]:
        """Keep all other processes from writing to the cache until the context is left."""
        with create_private(self._root / LOCK_NAME) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _make_room(self, num_bytes: int) -> None:
        """Evict the adapters read longest ago until num_bytes more fit, as far as nobody is reading them."""
        entries = []
        for digest in self._store.digests():
            with contextlib.suppress(FileNotFoundError, AdapterMissing):
                read_ns = (self._root / digest).stat().st_mtime_ns
                entries.append((read_ns, digest, self._store.size_bytes(digest)))
        excess = sum(size for _, _, size in entries) + num_bytes - self._max_bytes
        for _, digest, size in sorted(entries):
            if excess <= 0:
                return
            if self.evict(digest):
                excess -= size
