"""A log that loses lines where its disk is full, so that no work fails for want of room for a log line.

Knows nothing about what lines say.
"""

from __future__ import annotations

from typing import BinaryIO


class LossyLog:
    """Writes the bytes of loggers to a file, and drops the bytes that the file does not take."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, data: bytes) -> int:
        """Write bytes, or drop them."""
        try:  # not contextlib.suppress, which costs each request's line as much again
            self._file.write(data)
        except OSError:
            return len(data)
        return len(data)

    def flush(self) -> None:
        """Write as much to the file as it takes. The rest is tried again with the next line."""
        try:
            self._file.flush()
        except OSError:
            return
