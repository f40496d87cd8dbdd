"""Free room on a disk: tenants' content and uploads stop before the disk is full, for the database's sake.

Knows nothing about the written data.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

CHECK_S = 1.0


class DiskReserve:
    """The room that must stay free on the disk of a folder.

    min_free_bytes: the size of the room; 0: no room is kept. clock: seconds on a monotonic clock.
    """

    def __init__(self, folder: Path, min_free_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._min_free_bytes = min_free_bytes
        self._clock = clock
        self._checked_at_s = float("-inf")
        self._is_low = False

    def is_low(self) -> bool:
        """Tell whether less than min_free_bytes is free, as measured a second ago at most.

        The answer is no if the disk cannot be asked.
        """
        now_s = self._clock()
        if self._min_free_bytes and now_s - self._checked_at_s >= CHECK_S:
            self._checked_at_s = now_s
            try:
                found = os.statvfs(self._folder)
                self._is_low = found.f_bavail * found.f_frsize < self._min_free_bytes
            except OSError:
                self._is_low = False
        return self._is_low
