"""Splits bytes into lines of JSON as they arrive, within bounds, for servers without server-sent events.

Knows nothing of what the lines say.
"""

from __future__ import annotations

from gateway.backends.foreign.sse import MAX_EVENT_BYTES, EventTooLarge


class LineSplitter:
    """Splits the bytes of one stream into lines. Empty lines are skipped."""

    def __init__(self) -> None:
        self.num_lines = 0
        """Lines that have come whole, empty ones included."""
        self._rest = bytearray()

    def push(self, data: bytes) -> list[bytes]:
        """Take bytes of the stream, and return the lines that they complete.

        Raises EventTooLarge: when a line is longer than `MAX_EVENT_BYTES`.
        """
        self._rest += data
        lines: list[bytes] = []
        if b"\n" in data:
            *whole, rest = bytes(self._rest).split(b"\n")
            self._rest = bytearray(rest)
            self.num_lines += len(whole)
            lines = [line for each in whole if (line := each.strip())]
        if len(self._rest) > MAX_EVENT_BYTES or any(len(line) > MAX_EVENT_BYTES for line in lines):
            raise EventTooLarge
        return lines

    def finish(self) -> list[bytes]:
        """Return the line that the end of the stream completes, if there is one."""
        return self.push(b"\n") if self._rest else []
