"""Collects the counts of one server's requests, so that all that came at once are recorded together.

A count is recorded before anybody reads what came. Knows neither how replies are read nor where counts are kept.
"""

from __future__ import annotations

from gateway.backends.foreign.attempt import Attempt
from gateway.backends.usage import UsageSink


class NotedCounts:
    """The attempts whose new counts have not been recorded yet."""

    def __init__(self, sink: UsageSink) -> None:
        self._sink = sink
        self._attempts: dict[Attempt, None] = {}

    def add(self, attempt: Attempt) -> None:
        """Have the counts of an attempt recorded by the next `note`."""
        self._attempts[attempt] = None

    def note(self) -> None:
        """Record the new counts of all attempts. Called before any part that came is read."""
        if self._attempts:
            counts = [attempt.so_far for attempt in self._attempts]
            self._attempts.clear()
            self._sink.progressed(counts)

    def forget(self, attempt: Attempt) -> None:
        """Forget an attempt of which nothing more will be read: the recorded usage has all of its counts."""
        self._attempts.pop(attempt, None)
