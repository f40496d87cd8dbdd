"""Two sides that take turns, and the row that compares a figure of them with its bound. Knows no engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from engine.bench.report import Row


class Pair(NamedTuple):
    """The measurements of both sides in one round, in one unit."""

    ours: float
    other: float

    @property
    def ratio(self) -> float:
        """The first side's figure divided by the second side's."""
        return self.ours / self.other


class Bound(NamedTuple):
    """The bound of a figure."""

    value: float
    """The largest value that passes; the smallest one where `is_least`."""
    is_least: bool = False

    def __str__(self) -> str:
        return f"{'>=' if self.is_least else '<='} {self.value:g}"

    def holds(self, found: float) -> bool:
        """Tell whether a value passes; NaN never does."""
        return found >= self.value if self.is_least else found <= self.value


def rounds(measured: Callable[[], Pair], number: int) -> list[Pair]:
    """Measure this many pairs, after a first one that warms up and is not returned."""
    measured()
    return [measured() for _ in range(number)]


def ratio_row(line: str, case: str, pairs: Sequence[Pair], bound: Bound) -> Row:
    """Return the row of a ratio: the median of the rounds' ratios, robust to changes of the machine's speed."""
    ours, other = (median(side) for side in zip(*pairs, strict=True))
    return _row(line, case, ours, other, median(pair.ratio for pair in pairs), bound)


def value_row(line: str, case: str, value: float, bound: Bound) -> Row:
    """Return the row of a figure that stands alone."""
    return _row(line, case, value, None, value, bound)


def _row(line: str, case: str, ours: float, other: float | None, value: float, bound: Bound) -> Row:
    return {
        "line": line,
        "figure": case,
        "ours": _rounded(ours),
        "other": "" if other is None else _rounded(other),
        "value": _rounded(value),
        "bound": str(bound),
        "verdict": "PASS" if bound.holds(value) else "FAIL",
    }


def _rounded(value: float) -> float:
    return round(value, 2 if value < 100 else 1)
