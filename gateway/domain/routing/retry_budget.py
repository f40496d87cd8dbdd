"""A bound on requests that a gateway tries again.

The bound is a share of the requests that the gateway sends, so that retries never multiply an outage.

The rule is Finagle's: a fifth of the requests of the last seconds, and a floor for gateways that have few. Pure.
"""

from __future__ import annotations

from collections import deque

WINDOW_S = 10
SHARE = 0.2
"""Retries per request sent."""

FLOOR_PER_S = 10
"""Retries that are always allowed in a second."""


class RetryBudget:
    """The counts of requests and retries in each second. Times are in seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._seconds: deque[list[int]] = deque()  # [second, requests, retries], the latest last
        self._num_requests = 0
        self._num_retries = 0

    def sent(self, now_s: float) -> None:
        """Count a request's first attempt."""
        self._counts_of_second(now_s)[1] += 1
        self._num_requests += 1

    def take(self, now_s: float) -> bool:
        """Count a retry if it is allowed, and return whether it is."""
        second = self._counts_of_second(now_s)
        within_share = self._num_retries < SHARE * self._num_requests
        if not within_share and second[2] >= FLOOR_PER_S:
            return False
        second[2] += 1
        self._num_retries += 1
        return True

    def _counts_of_second(self, now_s: float) -> list[int]:
        """Return the counts of the present second, after removing those of seconds before the window."""
        now = int(now_s)
        if not self._seconds or self._seconds[-1][0] < now:
            self._seconds.append([now, 0, 0])
            while self._seconds[0][0] <= now - WINDOW_S:
                _, requests, retries = self._seconds.popleft()
                self._num_requests -= requests
                self._num_retries -= retries
        return self._seconds[-1]
