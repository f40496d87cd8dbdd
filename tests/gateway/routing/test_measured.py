"""Measured speeds: a late answer is known once enough was measured lately, and failures are forgotten."""

from __future__ import annotations

import random

from gateway.domain.routing.hedge_budget import SHARE
from gateway.routing.measured import FAILED_MS, FAILED_S, FORGET_S, MIN_SAMPLES, NUM_SAMPLES, MeasuredSpeeds


def measured_speeds(*times_ms: float, now_s: float = 0.0) -> MeasuredSpeeds:
    made = MeasuredSpeeds()
    for each in times_ms:
        made.add("proj", "m", now_s, first_token_ms=each, token_ms=1.0)
    return made


def late_ms(made: MeasuredSpeeds, now_s: float = 1.0) -> float | None:
    speed = made.find("proj", "m", now_s)
    assert speed is not None
    return speed.late_ms(now_s)


def test_a_twentieth_of_first_tokens_is_late() -> None:
    assert late_ms(measured_speeds(*range(1, MIN_SAMPLES))) is None
    assert late_ms(measured_speeds(*range(1, 21))) == 20
    assert late_ms(measured_speeds(*([5.0] * 58), *([2000.0] * 2))) == 5.0
    assert late_ms(measured_speeds(*([5.0] * 57), *([2000.0] * 3))) == 2000.0


def test_of_further_first_tokens_a_twentieth_is_late_and_not_more() -> None:
    """If more counted as late, requests that are hardly late would use up the hedges' budget of a twentieth."""
    draw, num_late = random.Random(3), 0
    made = measured_speeds(*(draw.random() for _ in range(NUM_SAMPLES)))
    for number in range(5_000):
        late, took_ms = late_ms(made, 1.0 + number * 1e-4), draw.random()
        assert late is not None
        num_late += took_ms > late
        made.add("proj", "m", 1.0 + number * 1e-4, first_token_ms=took_ms, token_ms=1.0)
    assert num_late <= SHARE * 5_000


def test_only_the_last_ones_and_those_of_the_last_minutes_count() -> None:
    assert late_ms(measured_speeds(*([9_000.0] * NUM_SAMPLES), *([5.0] * NUM_SAMPLES))) == 5.0
    made = measured_speeds(*([9_000.0] * MIN_SAMPLES))
    made.add("proj", "m", FORGET_S - 1, first_token_ms=5.0, token_ms=1.0)
    assert late_ms(made, FORGET_S - 0.5) == 9_000.0
    assert late_ms(made, FORGET_S + 1) is None


def test_a_failure_counts_for_some_seconds() -> None:
    made = measured_speeds(*([5.0] * MIN_SAMPLES))
    made.record_failure("proj", "m", 1.0)
    speed = made.find("proj", "m", 2.0)
    assert speed is not None and (speed.first_token_ms, speed.late_ms(2.0)) == (FAILED_MS, 5.0)
    speed = made.find("proj", "m", 1.0 + FAILED_S)
    assert speed is not None and speed.first_token_ms == 5.0
