"""A log that loses lines where its disk is full: what is logged is never a reason to fail, or to end what works on.

Knows nothing about what lines say.
"""

from __future__ import annotations

import contextlib
from typing import BinaryIO


class LossyLog:
    """Takes bytes for a file as loggers write them, and drops those that the file does not take."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, data: bytes) -> int:
        """Write bytes, or drop them."""
        with contextlib.suppress(OSError):
            self._file.write(data)
        return len(data)

    def flush(self) -> None:
        """Hand to the system what the file takes. The rest is tried again with the next line."""
        with contextlib.suppress(OSError):
            self._file.flush()
