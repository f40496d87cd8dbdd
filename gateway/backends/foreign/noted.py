"""The counts of the requests at one server, noted before anybody reads what came: one record for all that came at once.

Knows neither how replies are read nor where counts are kept.
"""

from __future__ import annotations

from gateway.backends.foreign.attempt import Attempt
from gateway.backends.usage import UsageSink


class NotedCounts:
    """The attempts whose new counts are not noted yet."""

    def __init__(self, sink: UsageSink) -> None:
        self._sink = sink
        self._attempts: dict[Attempt, None] = {}

    def add(self, attempt: Attempt) -> None:
        """Have the counts of an attempt noted by the next `note`."""
        self._attempts[attempt] = None

    def note(self) -> None:
        """Note the counts of all attempts of which something came. To be called before any of it is read."""
        if self._attempts:
            counts = [attempt.so_far for attempt in self._attempts]
            self._attempts.clear()
            self._sink.progressed(counts)

    def forget(self, attempt: Attempt) -> None:
        """Forget an attempt of which nothing more will be read: its usage is recorded as a whole."""
        self._attempts.pop(attempt, None)
