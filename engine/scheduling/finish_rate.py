"""The rate at which requests finish, to tell clients of refused ones when to come back."""

from __future__ import annotations

from collections import deque

MIN_RETRY_S, MAX_RETRY_S = 1.0, 30.0


class FinishRate:
    """Remembers the times at which the last num_remembered requests finished."""

    def __init__(self, num_remembered: int = 64) -> None:
        self._finished_s: deque[float] = deque(maxlen=num_remembered)

    def note(self, now_s: float) -> None:
        """Record that a request has finished now."""
        self._finished_s.append(now_s)

    def drain_s(self, num_requests: int, now_s: float) -> float:
        """Return how long num_requests take to finish at the recent rate, in [MIN_RETRY_S, MAX_RETRY_S].

        While nothing has finished yet, that is MAX_RETRY_S.
        """
        if not self._finished_s:
            return MAX_RETRY_S
        elapsed_s = now_s - self._finished_s[0]
        return min(max(num_requests * elapsed_s / len(self._finished_s), MIN_RETRY_S), MAX_RETRY_S)

    def per_s(self, now_s: float) -> float:
        """Return how many requests finish in a second at the recent rate."""
        if not self._finished_s:
            return 0.0
        return len(self._finished_s) / max(now_s - self._finished_s[0], 1.0)
