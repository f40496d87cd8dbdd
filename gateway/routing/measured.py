"""Speeds with which the models of projects have answered lately, in the memory of one gateway, for routes.

Times are averages in which an answer of half a minute ago counts half. A speed that was not measured for a while is
forgotten, so that a policy tries the model again; a model that has just failed counts as very slow for a few seconds.
Knows no clock: the caller gives the time.
"""

from __future__ import annotations

from array import array
from math import ceil

import msgspec

HALF_LIFE_S = 30.0
FORGET_S = 120.0
MAX_KNOWN = 10_000

FAILED_S = 10.0
FAILED_MS = 60_000.0
"""The milliseconds that count as a model's time to first token for a few seconds after a failure."""


NUM_SAMPLES = 64
MIN_SAMPLES = 20
LATE_SHARE = 0.95
"""The number of latest times to a first token that are stored for each model, the least number from which a bound for
late ones is computed, and the share of times that are expected below this bound."""


def _no_times() -> array[float]:
    return array("d")


class Speed(msgspec.Struct):
    """Measured response times of one model."""

    first_token_ms: float
    """The mean milliseconds to the first token, weighted towards the latest."""
    token_ms: float
    """The mean milliseconds per token after the first, weighted towards the latest."""
    at_s: float
    """The time of the latest measurement, by the monotonic clock."""
    last: array[float] = msgspec.field(default_factory=_no_times)
    """The last times to a first token: for each the second of the measurement, then the milliseconds."""

    def late_ms(self, now_s: float) -> float | None:
        """Return the milliseconds that one of 20 first tokens is expected to pass; None: too few were measured.

        Among n + 1 further times, n + 1 - k are expected to pass the k-th least of n measured ones; k is the least for
        which these are at most one in 20.
        """
        pairs = zip(self.last[::2], self.last[1::2], strict=True)
        times_ms = sorted(first_ms for at_s, first_ms in pairs if now_s - at_s < FORGET_S)
        return times_ms[ceil(LATE_SHARE * (len(times_ms) + 1)) - 1] if len(times_ms) >= MIN_SAMPLES else None


class MeasuredSpeeds:
    """The speeds of models, by project and model."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Speed] = {}
        self._failed_s: dict[tuple[str, str], float] = {}  # when each failed last, the latest last

    def add(self, project_id: str, model: str, now_s: float, *, first_token_ms: float, token_ms: float) -> None:
        """Record the times of one answer. token_ms: the mean time of each token after the first."""
        before = self._known.pop((project_id, model), None)
        speed = Speed(first_token_ms, token_ms, now_s)
        if before is not None:
            weight = 0.5 * 0.5 ** ((now_s - before.at_s) / HALF_LIFE_S)
            speed.first_token_ms += weight * (before.first_token_ms - first_token_ms)
            speed.token_ms += weight * (before.token_ms - token_ms)
            speed.last = before.last
        speed.last.extend((now_s, first_token_ms))
        if len(speed.last) > 2 * NUM_SAMPLES:
            del speed.last[:2]
        self._known[project_id, model] = speed
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]

    def record_failure(self, project_id: str, model: str, now_s: float) -> None:
        """Record that an answer failed or came too late."""
        self._failed_s.pop((project_id, model), None)
        self._failed_s[project_id, model] = now_s
        if len(self._failed_s) > MAX_KNOWN:
            del self._failed_s[next(iter(self._failed_s))]

    def find(self, project_id: str, model: str, now_s: float) -> Speed | None:
        """Return the measured times of a model; None where it was not measured lately."""
        failed_s = self._failed_s.get((project_id, model))
        if failed_s is not None and now_s - failed_s < FAILED_S:
            known = self._known.get((project_id, model))
            return Speed(FAILED_MS, 0.0, failed_s, _no_times() if known is None else known.last)
        speed = self._known.get((project_id, model))
        return speed if speed is not None and now_s - speed.at_s < FORGET_S else None
