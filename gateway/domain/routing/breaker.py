"""A circuit breaker: a server that fails is left alone for a while, then tried with one request.

Pure: the caller has the clock.

It opens after failures in a row, or when most of the last requests failed; each time that the trial fails, the next one
comes later (Nygard, Release It!, chapter 5).
"""

from __future__ import annotations

from collections import deque
from typing import Literal

import msgspec

CONSECUTIVE = 5
"""Failures in a row that open the breaker."""

WINDOW_S = 10.0
"""Seconds over which the share of failures is taken."""

MIN_REQUESTS = 10
"""The least number of requests within the window for which the share of failures counts."""

FAILED_SHARE = 0.5
"""The share of failures within the window that opens the breaker."""

FIRST_OPEN_S = 1.0
MAX_OPEN_S = 8.0
"""Seconds for which the breaker stays open: the first time, and at most, when trials go on failing."""

BreakerState = Literal["closed", "open", "half-open"]


class AdmissionToken(msgspec.Struct, frozen=True, eq=False):
    """The token of one request that may be sent. A request sent before the breaker opened does not decide a trial."""


class Breaker:
    """The breaker of one server. Times are in seconds of any clock that never goes back."""

    def __init__(self) -> None:
        self._ended: deque[tuple[float, bool]] = deque(maxlen=1024)
        self._num_consecutive = 0
        self._open_s = FIRST_OPEN_S
        self._opened_s: float | None = None
        self._trial: AdmissionToken | None = None

    def state(self, now_s: float) -> BreakerState:
        """Return whether requests may go to the server: all of them, none, or one as a trial."""
        if self._opened_s is None:
            return "closed"
        return "half-open" if now_s - self._opened_s >= self._open_s else "open"

    def open_for_s(self, now_s: float) -> float:
        """Return for how many seconds no request may be sent from now on."""
        return 0.0 if self._opened_s is None else max(0.0, self._opened_s + self._open_s - now_s)

    def take(self, now_s: float) -> AdmissionToken | None:
        """Return the token of a request that may be sent now; None where none may be sent.

        The request must end with the token, by `succeeded`, `failed` or `gave_up`.
        """
        match self.state(now_s):
            case "closed":
                return AdmissionToken()
            case "open":
                return None
        if self._trial is not None:
            return None
        self._trial = AdmissionToken()
        return self._trial

    def succeeded(self, admitted: AdmissionToken, now_s: float) -> None:
        """Record that the server answered a request."""
        self._num_consecutive = 0
        self._ended.append((now_s, True))
        if admitted is self._trial:
            self._opened_s, self._open_s, self._trial = None, FIRST_OPEN_S, None
            self._ended.clear()

    def failed(self, admitted: AdmissionToken, now_s: float) -> None:
        """Record that the server failed to answer a request."""
        self._ended.append((now_s, False))
        self._num_consecutive += 1
        if self._opened_s is not None:
            if admitted is self._trial:
                self._opened_s, self._open_s = now_s, min(MAX_OPEN_S, 2 * self._open_s)
                self._trial = None
        elif self._num_consecutive >= CONSECUTIVE or self._is_mostly_failing(now_s):
            self._opened_s = now_s

    def gave_up(self, admitted: AdmissionToken) -> None:
        """Record that a request ended without any evidence about the server, for instance because its client left."""
        if admitted is self._trial:
            self._trial = None

    def _is_mostly_failing(self, now_s: float) -> bool:
        recent = [good for ended_s, good in self._ended if now_s - ended_s <= WINDOW_S]
        return len(recent) >= MIN_REQUESTS and recent.count(False) >= FAILED_SHARE * len(recent)
