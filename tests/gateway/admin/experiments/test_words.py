"""Lengths of time are told in the units that fit, and declared days in one way."""

from __future__ import annotations

import pytest

from gateway.admin.experiments.words import conclusion, days_declared, duration


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
