"""Simulates experiments on a tenant's own traffic: past units are split at random, again and again.

No arm did anything in these experiments, so every significant result is a false alarm. The same formulas are used as
for results. Knows neither tables nor clocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import msgspec
import numpy as np
from numpy.typing import NDArray

from gateway.domain.errors import InvalidRequest
from gateway.domain.experiments import sizes
from gateway.domain.experiments.effects import MIN_UNITS, Kind, Mean, compare_arms, effect_of, mean_of, ratio_of
from gateway.domain.experiments.statistics.counts import is_beyond
from gateway.domain.experiments.sums import Sums, Unit, sums_of

NUM_RUNS = 2_000
MAX_RUNS = 20_000
HORIZON_DAYS = (7, 14, 28)
CHUNK_UNITS = 1_024
"""The number of units that are split at once in all runs, which bounds the memory."""


class PastUnit(msgspec.Struct, frozen=True):
    """A unit of the past, and its contribution to a metric within its outcome window."""

    day: int
    """The day of the unit's first request."""
    unit: Unit


class Horizon(msgspec.Struct, frozen=True):
    """The results of simulated experiments with equal arms that last some days, with a look at each day's end."""

    days: int
    units: int
    """The number of new units of both arms by the end of these days."""
    effect: float
    """The smallest effect that is found in 80 % of experiments, in the metric's unit."""
    relative: float | None
    """The detectable effect as a part of the mean; None if the mean is 0."""


class Calibration(msgspec.Struct, frozen=True):
    """The results of simulated experiments on the tenant's own traffic."""

    num_units: int
    num_days: int
    mean: float
    """The mean outcome of a unit."""
    deviation: float
    """The standard deviation of one unit's outcome; of a ratio, that of its linearized outcome."""
    num_runs: int
    """The number of simulated experiments."""
    num_false: int
    """Runs in which the interval that holds at every look excluded no effect at the end of any day."""
    num_false_fixed: int
    """The number of runs in which an ordinary test excluded no effect at the end of any day."""
    horizons: tuple[Horizon, ...]


def calibrate(
    units: Sequence[PastUnit],
    kind: Kind,
    *,
    alpha: float = 0.05,
    tightest_at: int = 5_000,
    num_runs: int = NUM_RUNS,
    seed: int = 0,
) -> Calibration:
    """Split past units into two equal arms at random, look at each split at the end of each day, and count alarms.

    tightest_at: units of both arms, as in the definition of an experiment. seed: the same gives the same splits. alpha:
    the level of each test. num_runs: the number of splits.

    Raises InvalidRequest: when there are fewer than two units of each arm to expect, or too many runs.
    """
    if not 1 <= num_runs <= MAX_RUNS:
        raise InvalidRequest(f"`runs` is from 1 to {MAX_RUNS}.", param="runs")
    total = sums_of(each.unit for each in units)
    if total.n < 2 * MIN_UNITS or (kind == "ratio" and not total.d):
        raise InvalidRequest("There is too little traffic of the past to learn from.", param="metric")
    whole = ratio_of(total) if kind == "ratio" else mean_of(total)
    days = sorted({each.day for each in units})
    num_days = days[-1] - days[0] + 1
    num_false, num_false_fixed = _alarms(units, days, kind, alpha, tightest_at, num_runs, seed)
    return Calibration(
        num_units=total.n,
        num_days=num_days,
        mean=whole.mean,
        deviation=math.sqrt(whole.variance * whole.n),
        num_runs=num_runs,
        num_false=num_false,
        num_false_fixed=num_false_fixed,
        horizons=tuple(_horizon(whole, each, total.n / num_days, alpha) for each in HORIZON_DAYS),
    )


def _horizon(whole: Mean, days: int, units_per_day: float, alpha: float) -> Horizon:
    num_units = days * units_per_day
    variance = whole.variance * whole.n
    per_arm = num_units / 2 / sizes.ANYTIME_FACTOR
    effect = sizes.smallest_effect(variance, variance, per_arm, alpha)
    return Horizon(days, int(num_units), effect, effect / abs(whole.mean) if whole.mean else None)


def _alarms(
    units: Sequence[PastUnit], days: Sequence[int], kind: Kind, alpha: float, tightest_at: int, num_runs: int, seed: int
) -> tuple[int, int]:
    """Return in how many splits the always-valid interval, and the ordinary test, raised an alarm at any look.

    alpha: the level of each test. tightest_at: as for `calibrate`.
    """
    rng, fixed_z = np.random.default_rng(seed), NormalDist().inv_cdf(1 - alpha / 2)
    treated = np.zeros((num_runs, len(_COLUMNS)))
    everybody = np.zeros(len(_COLUMNS))
    alarmed, alarmed_fixed = np.zeros(num_runs, bool), np.zeros(num_runs, bool)
    by_day: dict[int, list[Unit]] = {day: [] for day in days}
    for each in units:
        by_day[each.day].append(each.unit)
    for day in days:
        for begin in range(0, len(by_day[day]), CHUNK_UNITS):
            columns = _columns(by_day[day][begin : begin + CHUNK_UNITS])
            treated += rng.integers(0, 2, (num_runs, len(columns))).astype(float) @ columns
            everybody += columns.sum(axis=0)
        for run in range(num_runs):
            means = compare_arms([(_sums(everybody - treated[run]), _sums(treated[run]))], kind)
            if means is None:
                continue
            effect = effect_of(*means, alpha, tightest_at)
            alarmed[run] |= is_beyond(effect.log_e, alpha)
            alarmed_fixed[run] |= bool(effect.se) and abs(effect.effect) > fixed_z * effect.se
    return int(alarmed.sum()), int(alarmed_fixed.sum())


_COLUMNS = ("n", "y", "yy", "d", "dd", "yd")


def _columns(units: Sequence[Unit]) -> NDArray[np.float64]:
    """Return the contribution of each unit to sums, a row for each unit, in the order of `_COLUMNS`."""
    y, d = (np.array([float(getattr(each, name)) for each in units]) for name in ("y", "d"))
    return np.stack([np.ones(len(units)), y, y * y, d, d * d, y * d], axis=1)


def _sums(row: NDArray[np.float64]) -> Sums:
    n, *rest = row.tolist()
    return Sums(round(n), **dict(zip(_COLUMNS[1:], rest, strict=True)))
