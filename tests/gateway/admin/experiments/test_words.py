"""Texts of experiments: lengths of time in units that fit, declared days in one way, differences with their units,
and conclusions that follow the state."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.admin.experiments.wire_results import Bounds
from gateway.admin.experiments.words import comparison_text, conclusion, days_declared, duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (60, "1 minute"),
        (300, "5 minutes"),
        (7_200, "2 hours"),
        (604_800, "7 days"),
        (129_600, "1 day and 12 hours"),
        (90_061, "1 day, 1 hour, 1 minute and 1 second"),
        (0, "0 seconds"),
    ],
)
def test_a_length_of_time_is_given_in_the_units_that_fit(seconds: int, text: str) -> None:
    assert duration(seconds) == text


def test_declared_days_are_whole_days_since_the_start() -> None:
    assert (days_declared(1), days_declared(7)) == ("1 whole day since the start", "7 whole days since the start")
    said = conclusion([], [], [], units=9, is_srm=False, days=3, min_days=7, window_seconds=300)
    assert "a unit's window of 5 minutes is over" in said
    assert said.endswith("Do not decide yet: 3 of 7 whole days since the start are over.")


@pytest.mark.parametrize(
    ("metric", "low", "high", "text"),
    [
        ("ttft_ms", -12.5, 3, "between -12.5 ms and +3 ms"),
        ("cost_nanos", -400_000, 0, "between -400,000 nanos and +0 nanos"),
        ("completion_tokens", 1, 2.25, "between +1 tokens and +2.25 tokens"),
        ("error_rate", -0.01, 0.025, "between -1 percentage points and +2.5 percentage points"),
        ("stars", -0.5, 1, "between -0.5 and +1"),
    ],
)
def test_a_difference_that_is_no_part_of_the_control_has_its_unit(
    metric: str, low: float, high: float, text: str
) -> None:
    said = comparison_text(metric, "warm", "control", Bounds(low, high), None, "unclear")
    assert said == f"{metric} in warm, compared with control: {text}; no difference is proven yet."


def test_what_was_decided_is_not_up_for_decision() -> None:
    def text_of(*, days: int = 9, **state: Any) -> str:
        return conclusion([], [], [], units=9, is_srm=False, days=days, min_days=7, window_seconds=300, **state)

    assert text_of().endswith("stopping now leaves the question open.")
    assert text_of(is_stopped=True).endswith("No more units come, and the question stays open.")
    assert text_of(days=3, is_stopped=True).endswith(
        "It was stopped after 3 of 7 whole days since the start: what shows may be of some weekdays alone."
    )
    for days in (3, 9):
        decided = text_of(days=days, is_stopped=True, chosen="warm")
        assert decided.endswith("warm was chosen.") and "decide" not in decided
