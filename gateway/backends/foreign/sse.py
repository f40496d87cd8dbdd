"""Reads the data of server-sent events from bytes as they come, up to a bound (WHATWG HTML, section 9.2)."""

from __future__ import annotations

MAX_EVENT_BYTES = 1 << 20
"""The most bytes of one event."""


class EventTooLarge(ValueError):
    """The error for an event of more than MAX_EVENT_BYTES."""


class EventReader:
    """Reads the events of one stream. Comments and all fields but `data` are skipped."""

    def __init__(self) -> None:
        self.num_lines = 0
        """Lines that have come whole."""
        self._rest = bytearray()
        self._data: list[bytes] = []
        self._num_bytes = 0

    def push(self, data: bytes) -> list[bytes]:
        """Take bytes of the stream, and return the data of the events that they complete.

        Raises EventTooLarge: when an event is longer than `MAX_EVENT_BYTES`.
        """
        if data.endswith(b"\n\n") and not self._rest and not self._data and (usual := _split_single_lines(data)):
            self.num_lines += 2 * len(usual)
            return usual
        if b"\n" not in data:  # a line that comes byte by byte is not copied each time
            self._rest += data
            if len(self._rest) > MAX_EVENT_BYTES:
                raise EventTooLarge
            return []
        lines = (bytes(self._rest) + data if self._rest else data).split(b"\n")
        self._rest = bytearray(lines.pop())
        self.num_lines += len(lines)
        if len(self._rest) > MAX_EVENT_BYTES:
            raise EventTooLarge
        found = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                value = line[6:] if line[5:6] == b" " else line[5:]
                self._num_bytes += len(value) + 1  # its line end: lines without a value fill memory too
                if self._num_bytes > MAX_EVENT_BYTES:
                    raise EventTooLarge
                self._data.append(value)
            elif not line and self._data:
                found.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                self._data.clear()
                self._num_bytes = 0
        return found

    def finish(self) -> list[bytes]:
        """Return the last event if the end of the stream completes one; else an empty list."""
        return self.push(b"\n\n") if self._rest or self._data else []


def _split_single_lines(data: bytes) -> list[bytes]:
    """Return the data of whole events where each is of one line of data alone, as nearly all are; else []."""
    found = []
    for each in data[:-2].split(b"\n\n"):
        if not each.startswith(b"data: ") or b"\n" in each or each.endswith(b"\r"):
            return []
        found.append(each[6:])
    return found
