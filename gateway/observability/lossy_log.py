"""A log that loses lines where its disk is full, so that no work fails for want of room for a log line.

Knows nothing about what lines say.
"""

from __future__ import annotations

from typing import BinaryIO


class LossyLog:
    """A log file that drops the bytes for which the disk has no room."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, data: bytes) -> int:
        """Write the bytes of log lines, or drop them. Return their number."""
        try:  # not contextlib.suppress, which costs each request's line as much again
            self._file.write(data)
        except OSError:
            return len(data)
        return len(data)

    def flush(self) -> None:
        """Write the buffered bytes as far as the disk has room. The rest is tried again with the next line."""
        try:
            self._file.flush()
        except OSError:
            return
