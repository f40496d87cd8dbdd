"""The effects of an experiment by days since units' first exposures: whether they fade as users get used to them.

The same units are compared on each day: those whose outcome windows ended. A pure function of sums, as `results` is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from gateway.domain.experiments.definition import Experiment, Role
from gateway.domain.experiments.effects import Kind
from gateway.domain.experiments.metrics import METRICS, needs_equal_weights
from gateway.domain.experiments.results import (
    Comparison,
    SumsRow,
    Tally,
    comparison_of,
    kind_of,
    level_of,
    of_equal_weights,
    shown_metrics,
)
from gateway.domain.experiments.sums import NO_UNITS, Sums
from gateway.domain.experiments.units import IN_EVERY_UNIT, num_ages

OF_ALL = "cost_nanos"
"""A metric for which each unit has a value: the sums of it give the number of units whose window has ended."""

Trend = Literal["fading", "growing", "unclear"]
"""The trend of an effect over the days since exposure.

fading: the effect of the last day is proven to be nearer to 0 than that of the first, or on the other side of 0;
growing: farther from 0. unclear: neither is proven.
"""


class AgeRow(msgspec.Struct, frozen=True):
    """Sums of one metric over units' outcomes on one day since their first exposure."""

    age: int
    """Days since the first exposure: 0 for its first 24 hours."""
    epoch: int
    arm: int
    """The index of the arm."""
    metric: str
    sums: Sums
    """The sums over the units that did something on that day."""


class AgeEffects(msgspec.Struct, frozen=True):
    """The effect of one arm on one metric, on each day since exposure."""

    metric: str
    role: Role
    arm: int
    """The index of the arm."""
    days: tuple[tuple[int, Comparison], ...]
    """The comparisons by days since exposure. The intervals of all days hold together, at the level of the metric."""
    trend: Trend


def effects_by_age(
    experiment: Experiment, tally: Tally, ages: Sequence[AgeRow], own: Mapping[str, Kind]
) -> list[AgeEffects]:
    """Return the effects on each day since exposure; none where the outcome window has less than two days.

    tally: the experiment's shares, units, and sums of `OF_ALL`, over all days together.
    own: the project's own metrics and their kinds, by name.
    """
    num = num_ages(experiment.analysis.outcome_window_seconds * 1_000_000)
    closed: dict[tuple[int, int], int] = {}
    for row in tally.sums:
        if row.metric == OF_ALL:
            closed[row.epoch, row.arm] = closed.get((row.epoch, row.arm), 0) + row.sums.n
    found = []
    for metric, role, goal, _ in shown_metrics(experiment):
        kind = kind_of(metric, own)
        if kind is None or not num:
            continue
        if goal is None and metric in METRICS:
            goal = METRICS[metric].better
        days = [
            _tally_of(tally, closed, [row for row in ages if row.metric == metric], metric, age) for age in range(num)
        ]
        for arm in range(1, len(experiment.arms)):
            alpha = level_of(experiment, role) / num
            seen = [of_equal_weights(each, arm) if needs_equal_weights(metric) else each for each in days]
            compared = [comparison_of(experiment, each, (metric, role, goal, kind), arm, alpha) for each in seen]
            shown = tuple((age, each) for age, each in enumerate(compared) if each is not None)
            if shown:
                found.append(AgeEffects(metric, role, arm, shown, trend_of([each for _, each in shown])))
    return found


def trend_of(days: Sequence[Comparison]) -> Trend:
    """Return whether the effect fades or grows from the first to the last of some days.

    A change is proven if the intervals of both days do not overlap.
    """
    first, last = days[0].effect, days[-1].effect
    is_lower, is_higher = last.interval.high < first.interval.low, last.interval.low > first.interval.high
    if not (is_lower or is_higher):
        return "unclear"
    return "fading" if (is_lower and first.interval.low > 0) or (is_higher and first.interval.high < 0) else "growing"


def _tally_of(
    tally: Tally, closed: Mapping[tuple[int, int], int], rows: Sequence[AgeRow], metric: str, age: int
) -> Tally:
    """Return one day's sums of a metric.

    The sums are of all units whose window ended. Units that did nothing on the day are among them where such units
    count as 0.

    age: the day, counted in days since a unit's first exposure.
    """
    sums = {(row.epoch, row.arm): row.sums for row in rows if row.age == age}
    if metric in IN_EVERY_UNIT:
        sums = {
            place: msgspec.structs.replace(sums.get(place, NO_UNITS), n=num) for place, num in closed.items() if num
        }
    listed = [SumsRow(age, epoch, arm, metric, each) for (epoch, arm), each in sums.items()]
    return msgspec.structs.replace(tally, sums=listed, times=())
