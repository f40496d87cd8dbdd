"""A bound on second tries of requests that are late: a twentieth of all requests, whatever else is slow. Pure."""

from __future__ import annotations

SHARE = 0.05
"""Second tries per request sent."""
MOST_SAVED = 10.0
"""The most second tries that may accumulate while none is made, and then come at once."""


class HedgeBudget:
    """A bucket to which each request adds a share, and from which each second try takes one."""

    def __init__(self) -> None:
        self._saved = 0.0

    def sent(self) -> None:
        """Count a request."""
        self._saved = min(MOST_SAVED, self._saved + SHARE)

    def take(self) -> bool:
        """Count a second try if it is allowed, and return whether it is."""
        if self._saved < 1.0 - 1e-9:
            return False
        self._saved -= 1.0
        return True
