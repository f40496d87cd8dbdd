"""An arm's mean and the effect of a treatment, from sums: plain means, ratios, CUPED, over epochs, with intervals.

CUPED: Deng et al., WSDM 2013. Ratios by the delta method: Deng, Knoblich and Lu, KDD 2018. Relative effects by
Fieller's theorem, whose sets hold where the control is near 0. Epochs are strata, so that a ramp is no Simpson's
paradox.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from gateway.domain.experiments.statistics import sequences
from gateway.domain.experiments.sums import NO_UNITS, Sums

Kind = Literal["mean", "ratio"]
"""The way in which a metric is computed from sums.

mean: the mean of y over units.

ratio: the sum of y over the sum of d, for metrics of requests where units have several.
"""

MIN_UNITS = 2
"""The least units of each arm with which an epoch counts."""


class Mean(msgspec.Struct, frozen=True):
    """An estimate for one arm."""

    n: int
    """The number of units."""
    mean: float
    variance: float
    """The variance of the estimate, not of the outcome."""


class Interval(msgspec.Struct, frozen=True):
    """The bounds of an interval, in the metric's unit or relative to the control; infinite without a bound."""

    low: float
    high: float


class Effect(msgspec.Struct, frozen=True):
    """The difference of treatment and control, and what may be concluded from it at this look."""

    n: int
    """Units of both arms."""
    effect: float
    """The mean of the treatment less that of the control."""
    se: float
    """The standard error of the effect."""
    interval: Interval
    log_e: float
    """ln of the E-value against no effect. Significant where it reaches -ln(alpha)."""

    @property
    def p(self) -> float:
        """The p-value of the effect, valid at any look."""
        return sequences.p_value(self.log_e)


def mean_of(sums: Sums, theta: float = 0.0, x_mean: float = 0.0) -> Mean:
    """Return an arm's mean of y - theta (x - x_mean).

    x_mean: the mean of x over all arms. theta: as `cuped_theta` returns it.
    """
    variance = sums.variance
    if theta:
        variance += theta**2 * sums.covariance("x", "x") - 2 * theta * sums.covariance("x", "y")
    return Mean(sums.n, sums.mean - theta * (sums.x / sums.n - x_mean), max(0.0, variance) / sums.n)


def cuped_theta(arms: Sequence[Sums]) -> float:
    """Return Cov(y, x) / Var(x) over all units of some arms; 0 where x does not vary."""
    total = sum(arms, NO_UNITS)
    spread = total.covariance("x", "x") if total.n > 1 else 0.0
    return total.covariance("x", "y") / spread if spread else 0.0


def ratio_of(sums: Sums) -> Mean:
    """Return an arm's ratio R = sum of y / sum of d over its units, and its variance.

    The variance by the delta method is (s_yy - 2 R s_yd + R**2 s_dd) / (n mean(d)**2).

    Raises ZeroDivisionError: when the denominators sum to 0.
    """
    ratio = sums.y / sums.d
    spread = sums.variance - 2 * ratio * sums.covariance("y", "d") + ratio**2 * sums.covariance("d", "d")
    return Mean(sums.n, ratio, max(0.0, spread) / (sums.n * (sums.d / sums.n) ** 2))


def stratified(strata: Sequence[tuple[int, Mean]]) -> Mean:
    """Return an arm's estimate over epochs.

    strata: for each epoch the units of all compared arms, and the estimate.
    The weight of an epoch is its part of all units: mean = sum of w mean_e, variance = sum of w**2 variance_e.
    """
    total = sum(units for units, _ in strata)
    return Mean(
        sum(each.n for _, each in strata),
        math.fsum(units / total * each.mean for units, each in strata),
        math.fsum((units / total) ** 2 * each.variance for units, each in strata),
    )


def compare_arms(
    epochs: Sequence[tuple[Sums, Sums]], kind: Kind = "mean", *, adjusted: bool = False
) -> tuple[Mean, Mean] | None:
    """Return the estimates of control and treatment; None where no epoch has enough units of both.

    epochs: the sums of control and treatment in each. adjusted: whether to apply CUPED, with one theta over all epochs'
    deviations from their means; for means alone. Epochs with fewer than two units of an arm are left out.
    """
    full = [(a, b) for a, b in epochs if min(a.n, b.n) >= MIN_UNITS and (kind == "mean" or (a.d and b.d))]
    if not full:
        return None
    theta = _theta_within(full) if adjusted and kind == "mean" else 0.0
    control, treatment = [], []
    for a, b in full:
        units, x_mean = a.n + b.n, (a.x + b.x) / (a.n + b.n)
        control.append((units, ratio_of(a) if kind == "ratio" else mean_of(a, theta, x_mean)))
        treatment.append((units, ratio_of(b) if kind == "ratio" else mean_of(b, theta, x_mean)))
    return stratified(control), stratified(treatment)


def effect_of(control: Mean, treatment: Mean, alpha: float, tightest_at: int) -> Effect:
    """Return the effect with an interval at level alpha that holds at every look (`sequences`, the t form).

    tightest_at: units of both arms. If nothing varied, the interval is unbounded and E is 1: nothing is known yet.
    """
    n = control.n + treatment.n
    effect, se = treatment.mean - control.mean, math.sqrt(control.variance + treatment.variance)
    if not se:
        return Effect(n, effect, 0.0, Interval(-math.inf, math.inf), 0.0)
    u = sequences.information(n, tightest_at, alpha)
    half = se * sequences.t_radius(n - 2, u, alpha)
    return Effect(n, effect, se, Interval(effect - half, effect + half), sequences.t_log_e(effect / se, n - 2, u))


def relative_interval(control: Mean, treatment: Mean, radius: float) -> Interval | None:
    """Return the interval of the relative effect r: |m_B - (1+r) m_A| <= radius sqrt(v_B + (1+r)**2 v_A).

    None where the solutions are no interval, since the control's mean may be 0 (m_A**2 <= radius**2 v_A), or
    where the control's mean is negative. radius: the radius in standard errors, of a fixed test or of `sequences`.
    """
    a = control.mean**2 - radius**2 * control.variance
    if not math.isfinite(radius) or a <= 0 or control.mean < 0:
        return None
    middle = control.mean * treatment.mean
    root = math.sqrt(max(0.0, middle**2 - a * (treatment.mean**2 - radius**2 * treatment.variance)))
    low, high = sorted(((middle - root) / a - 1, (middle + root) / a - 1))
    return Interval(low, high)


def by_epoch(sums: Mapping[tuple[int, int], Sums], control: int, treatment: int) -> list[tuple[Sums, Sums]]:
    """Return the sums of two arms in each epoch.

    sums: the sums by (epoch, index of the arm). control, treatment: the indexes of the arms.
    """
    return [
        (sums.get((epoch, control), NO_UNITS), sums.get((epoch, treatment), NO_UNITS))
        for epoch in sorted({epoch for epoch, _ in sums})
    ]


def _theta_within(epochs: Sequence[tuple[Sums, Sums]]) -> float:
    totals = [a + b for a, b in epochs]
    spread = math.fsum((each.n - 1) * each.covariance("x", "x") for each in totals)
    return math.fsum((each.n - 1) * each.covariance("x", "y") for each in totals) / spread if spread else 0.0
