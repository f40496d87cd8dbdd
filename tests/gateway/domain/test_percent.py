"""Percentages show enough digits: a tiny part is not shown as 0 %, nor nearly all of something as 100 %."""

from __future__ import annotations

import pytest

from gateway.domain.percent import percent_text


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (0, "0%"),
        (1, "100%"),
        (0.123, "12.3%"),
        (0.004, "0.4%"),
        (0.0004, "0.040%"),
        (0.0001, "0.010%"),
        (0.99961, "99.96%"),
        (0.9999, "99.99%"),
        (2.5, "250.0%"),
    ],
)
def test_a_part_is_shown_with_the_digits_that_it_needs(part: float, text: str) -> None:
    assert percent_text(part) == text


def test_differences_have_a_sign() -> None:
    shown = [percent_text(part, is_signed=True) for part in (0.05, -0.0004, 0)]
    assert shown == ["+5.0%", "-0.040%", "+0%"]
