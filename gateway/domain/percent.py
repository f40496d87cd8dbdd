"""Formats parts of a whole as percentages: a tiny part is not shown as 0 %, nor all but a tiny part as 100 %."""

from __future__ import annotations

import math

MAX_DECIMALS = 6


def percent_text(part: float, *, is_signed: bool = False) -> str:
    """Return a part as a percentage with one decimal, or more where that would show 0 % or 100 %: 12.3%, 0.040%.

    is_signed: True adds a plus sign to parts above 0.
    """
    value = abs(part) * 100
    if value in (0, 100):
        return f"{part:{'+' if is_signed else ''}.0%}"
    decimals = 1 if value >= 0.1 else min(MAX_DECIMALS, 1 - math.floor(math.log10(value)))
    while value < 100 <= float(f"{value:.{decimals}f}") and decimals < MAX_DECIMALS:
        decimals += 1
    return f"{part:{'+' if is_signed else ''}.{decimals}%}"
