"""PostgreSQL's clock, carried on between two looks at it by what a monotonic clock says has passed."""

from __future__ import annotations

from collections.abc import Callable

from gateway.domain.limits.limit import NS_PER_S


class DatabaseClock:
    """Unix time in ns as the database has it, late by at most the time a query takes to answer.

    monotonic: seconds from any origin; only differences are used. Before the first `set` there is no time.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.monotonic = monotonic
        self._set_ns = 0
        self._set_s = 0.0

    def set(self, now_ns: int) -> None:
        """Set the time, which the database has just answered."""
        self._set_ns, self._set_s = now_ns, self.monotonic()

    def now_ns(self) -> int:
        return self._set_ns + int((self.monotonic() - self._set_s) * NS_PER_S)
