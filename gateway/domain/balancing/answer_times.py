"""The recent answer times of replicas, and the weight of a slow replica beside a fast one. Pure.

For replicas that do not report their load, such as servers of other makers: if only requests were counted, a slow
replica would get as many as a fast one while requests are few. Medians are taken, so that one request in many that
stalls changes nothing; only answers some time apart count, so that a moment in which this process itself stands still
changes nothing either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median

NUM_SAMPLES = 9
"""The number of answers whose median is taken."""

APART_S = 0.2
"""The least seconds between two answers that are stored, except for the first few: busy replicas give many at once."""

MIN_SAMPLES = 3
"""The least number of answers for which there is a median."""

FORGET_S = 30.0
"""Seconds after which an answer is forgotten, so that a replica that was slow is tried again."""

USUAL_TOKENS = 32
"""The number of tokens of the answer whose time is compared among replicas."""

NOISE_MS = 10.0
"""Milliseconds that are added to each time before comparison, so that differences of a few do not matter."""

TOLERATED = 1.25
"""The factor by which a replica may be slower than the fastest one and still get as many requests."""

LEAST_PACE = 0.02


class AnswerTimes:
    """The last answers of one replica."""

    def __init__(self) -> None:
        self._last: deque[tuple[float, float, float]] = deque(maxlen=NUM_SAMPLES)

    def answered(self, now_s: float, first_ms: float, token_ms: float) -> None:
        """Count an answer.

        first_ms: the time until its first token. token_ms: the time of each further token; 0 where there was none.
        """
        if len(self._recent_times(now_s)) < MIN_SAMPLES or now_s - self._last[-1][0] >= APART_S:
            self._last.append((now_s, first_ms, token_ms))

    def waited(self, now_s: float, waited_ms: float) -> None:
        """Count a request that was given up before its first token, if it waited longer than usual."""
        usual = self._medians(now_s)
        if usual is not None and waited_ms > usual[0]:
            self.answered(now_s, waited_ms, usual[1])

    def usual_ms(self, now_s: float, waits_ms: Sequence[float] = ()) -> float | None:
        """Return the time of an answer of USUAL_TOKENS; None where too few answers came lately.

        waits_ms: the times for which requests have waited for their first token. Waits longer than the usual first
        token count as answers, and all waits where no time is usual, so that a replica is found slow before it has
        answered.
        """
        usual = self._medians(now_s)
        if usual is None:
            return median(waits_ms) if len(waits_ms) >= MIN_SAMPLES else None
        first_ms, token_ms = usual
        if late := sorted(each for each in waits_ms if each > first_ms)[-NUM_SAMPLES:]:
            first_ms = median([each[1] for each in self._recent_times(now_s)] + late)
        return first_ms + USUAL_TOKENS * token_ms

    def _medians(self, now_s: float) -> tuple[float, float] | None:
        recent = self._recent_times(now_s)
        if len(recent) < MIN_SAMPLES:
            return None
        return median(each[1] for each in recent), median(each[2] for each in recent)

    def _recent_times(self, now_s: float) -> list[tuple[float, float, float]]:
        return [each for each in self._last if now_s - each[0] < FORGET_S]


def capacity_factors(usual_ms: Mapping[str, float | None]) -> dict[str, float]:
    """Return the part of its capacity with which each replica counts, above 0 and at most 1.

    The part follows from the usual time of the replica's answers. None stands for a replica that was not seen lately,
    which counts as the fastest. A part falls with the square of the time: a replica that is five times slower gets
    about a fifteenth of what the fastest gets.
    """
    known = [each for each in usual_ms.values() if each is not None]
    if not known:
        return dict.fromkeys(usual_ms, 1.0)
    tolerated_ms = TOLERATED * (min(known) + NOISE_MS)
    return {
        replica_id: 1.0 if each is None else min(1.0, max(LEAST_PACE, (tolerated_ms / (each + NOISE_MS)) ** 2))
        for replica_id, each in usual_ms.items()
    }
