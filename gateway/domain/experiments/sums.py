"""Sums over units, from which all results are computed. They add up over days and gateways, and subtract for windows.

With integers (tokens, nanos, microseconds, 0 and 1) every sum is exact, so that a recount from rows is equal rather
than close, and so are the variances below until their one division. Fractions are stored as integers of a small unit,
such as millionths: sums of floats lose digits where values are far from 0.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Unit(msgspec.Struct, frozen=True):
    """The contribution of one unit to one metric."""

    y: int | float
    """The outcome, or the numerator of a ratio, within the unit's outcome window."""
    x: int | float = 0
    """The covariate: the same metric before the unit's first exposure; 0 where it has none."""
    d: int | float = 0
    """The denominator of a ratio; 0 for other metrics."""


class Sums(msgspec.Struct, frozen=True):
    """Sums over the units of one epoch, arm and metric."""

    n: int = 0
    """The number of units."""
    y: int | float = 0
    """The sum of `Unit.y`."""
    yy: int | float = 0
    """The sum of y squared."""
    x: int | float = 0
    """The sum of `Unit.x`."""
    xx: int | float = 0
    """The sum of x squared."""
    xy: int | float = 0
    """The sum of x times y."""
    d: int | float = 0
    """The sum of `Unit.d`."""
    dd: int | float = 0
    """The sum of d squared."""
    yd: int | float = 0
    """The sum of y times d."""

    def __add__(self, other: Sums) -> Sums:
        """Return the sums over the units of these sums and of the other ones."""
        return Sums(
            self.n + other.n,
            self.y + other.y,
            self.yy + other.yy,
            self.x + other.x,
            self.xx + other.xx,
            self.xy + other.xy,
            self.d + other.d,
            self.dd + other.dd,
            self.yd + other.yd,
        )

    def __sub__(self, other: Sums) -> Sums:
        """Return these sums less the other ones, for instance to take out units or their former values."""
        return Sums(
            self.n - other.n,
            self.y - other.y,
            self.yy - other.yy,
            self.x - other.x,
            self.xx - other.xx,
            self.xy - other.xy,
            self.d - other.d,
            self.dd - other.dd,
            self.yd - other.yd,
        )

    @property
    def mean(self) -> float:
        """The mean of y.

        Raises ZeroDivisionError: when there are no units.
        """
        return self.y / self.n

    @property
    def variance(self) -> float:
        """The sample variance of y, with n - 1 as the divisor.

        Raises ZeroDivisionError: when there are fewer than two units.
        """
        return self.covariance("y", "y")

    def covariance(self, a: str, b: str) -> float:
        """Return the sample covariance, with n - 1 as the divisor, of two of "x", "y" and "d" whose product is summed.

        Raises ZeroDivisionError: when there are fewer than two units.
        """
        product = {"xx": self.xx, "xy": self.xy, "yy": self.yy, "dd": self.dd, "dy": self.yd}["".join(sorted(a + b))]
        first, second = getattr(self, a), getattr(self, b)
        spread: float = (self.n * product - first * second) / (self.n * (self.n - 1))
        return max(0.0, spread) if a == b else spread


NO_UNITS = Sums()


def sums_of(units: Iterable[Unit]) -> Sums:
    """Return the sums of some units, as a recount makes them."""
    total = NO_UNITS
    for unit in units:
        total += _sums_of_unit(unit)
    return total


def change(before: Unit | None, after: Unit | None) -> Sums:
    """Return the sums to add when a unit's contribution changes; None: the unit has no contribution.

    A late event, a replaced vote and a forgotten unit are all such changes, in any order.

    before, after: the contribution as it was and as it is.
    """
    if before is None:
        return _sums_of_unit(after) if after else NO_UNITS
    return (_sums_of_unit(after) if after else NO_UNITS) - _sums_of_unit(before)


def _sums_of_unit(unit: Unit) -> Sums:
    y, x, d = unit.y, unit.x, unit.d
    return Sums(1, y, y * y, x, x * x, x * y, d, d * d, y * d)
