"""Lengths of time are told in the units that fit, and declared days in one way."""

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
def test_a_length_is_told_in_the_units_that_fit(seconds: int, text: str) -> None:
    assert duration(seconds) == text


def test_declared_days_are_whole_days_since_the_start() -> None:
    assert (days_declared(1), days_declared(7)) == ("1 whole day since the start", "7 whole days since the start")
    said = conclusion([], [], [], units=9, is_srm=False, days=3, min_days=7, window_seconds=300)
    assert "a unit's window of 5 minutes is over" in said
    assert said.endswith("Do not decide yet: 3 of 7 whole days since the start are over.")


def test_a_conclusion_goes_by_the_state_of_the_experiment() -> None:
    what: dict[str, Any] = {"units": 9, "is_srm": False, "days": 9, "min_days": 7, "window_seconds": 300}
    assert conclusion([], [], [], **what).endswith("stopping now leaves the question open.")
    assert "No more units come" in conclusion([], [], [], **what, is_stopped=True)
    said = conclusion([], [], [], **what, is_stopped=True, decided="warm")
    assert said.endswith("It is decided: everybody gets warm.") and "More units" not in said


def test_a_difference_has_its_unit_and_what_it_differs_from() -> None:
    absolute = comparison_text("completion_tokens", "warm", "control", Bounds(-1.5, 12.25), None, "unclear", 40.0)
    assert "completion_tokens in warm differs by -1.5 to +12.25 tokens from the 40 tokens of control;" in absolute
    relative = comparison_text("ttft_ms", "warm", "control", Bounds(1, 2), Bounds(0.1, 0.25), "worse", 12.5)
    assert "differs by +10.0% to +25.0% from the 12.5 ms of control; warm is worse" in relative
    own = comparison_text("liked_ms", "warm", "control", Bounds(0.1, 0.5), None, "better", 0.25)
    assert "by +0.1 to +0.5 from the 0.25 of control" in own, "only built-in metrics have units"
