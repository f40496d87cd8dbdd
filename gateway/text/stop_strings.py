"""Text that comes piece by piece, ended by the first stop string. Knows no tokens."""

from __future__ import annotations


class StopStrings:
    """A text that arrives in pieces and ends at the first complete stop string; of several there, the longest.

    Text that may be the beginning of a stop string is held back until that is decided. include: True: the stop string
    is shown, as the end of the text.
    """

    def __init__(self, stop: tuple[str, ...], *, include: bool = False) -> None:
        self._stop = stop
        self._include = include
        self._held = ""
        self.found = False
        """True once a stop string was found: no text follows."""
        self.matched = ""
        """The stop string that was found, "" for none."""

    @property
    def is_holding(self) -> bool:
        """True if text is held back that may be the beginning of a stop string."""
        return bool(self._held)

    def push(self, text: str, *, is_exempt: bool = False) -> str:
        """Add text, and return what is safe to show and was not returned before.

        is_exempt: True: no stop string is looked for yet.
        """
        if not self._stop:
            return text
        held, self._held = self._held + text, ""
        if is_exempt:
            return held
        found = _first_complete(held, self._stop)
        if found is not None:
            self.found, self.matched = True, held[found]
            return held[: found.stop if self._include else found.start]
        cut = len(held) - _num_undecided_chars(held, self._stop)
        self._held = held[cut:]
        return held[:cut]

    def finish(self) -> str:
        """End the text and return the part of it that was held back."""
        held, self._held = self._held, ""
        return held


def _first_complete(text: str, stop: tuple[str, ...]) -> slice | None:
    """Return the slice of the stop string that is complete first; of several that end together, the longest."""
    found = [(start + len(word), start) for word in stop if (start := text.find(word)) >= 0]
    if not found:
        return None
    end, start = min(found)
    return slice(start, end)


def _num_undecided_chars(text: str, stop: tuple[str, ...]) -> int:
    """Return the length of the longest suffix of text that is a prefix of a stop string."""
    longest = max(len(word) for word in stop) - 1
    for size in range(min(longest, len(text)), 0, -1):
        end = text[-size:]
        if any(word.startswith(end) for word in stop):
            return size
    return 0
