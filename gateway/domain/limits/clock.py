"""PostgreSQL's clock between two readings, continued by a monotonic clock."""

from __future__ import annotations

from collections.abc import Callable

from gateway.domain.limits.limit import NS_PER_S


class DatabaseClock:
    """The database's Unix time in ns, late by at most the time that a query takes.

    The clock has no time before the first `set`.

    monotonic: seconds from any origin; only differences are used.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.monotonic = monotonic
        self._set_ns = 0
        self._set_s = 0.0

    def set(self, now_ns: int) -> None:
        """Set the time, which the database has just answered."""
        self._set_ns, self._set_s = now_ns, self.monotonic()

    def now_ns(self) -> int:
        """Return the database's time in nanoseconds since 1970."""
        return self._set_ns + int((self.monotonic() - self._set_s) * NS_PER_S)
