"""Estimates people's opinion about a metric of an arm from their votes and, with its bias removed, a judge's votes.

People vote about some units, drawn at random, and a judge about many; a unit has the mean of the votes of each. The
judge's bias falls out, since it shows where both voted (`statistics.judges`). A judge's votes alone are in no other
metric. Knows neither which model judges nor how.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from gateway.domain.experiments.definition import Role
from gateway.domain.experiments.effects import MIN_UNITS, Effect, Mean, stratified
from gateway.domain.experiments.statistics.judges import effect_of_labels, prediction_powered, scores_of
from gateway.domain.experiments.sums import NO_UNITS, Sums, Unit

MILLION = 1_000_000
"""The factor by which means of units are stored as integers, in millionths, so that sums are exact."""
LABELS_PER_UNIT = 1 / 20
"""The expected part of the units about which people vote; intervals are tightest if it is right."""
LEAST_LABELS = 20

_JUDGE, _BOTH = ":judge", ":both"
"""The ends of the keys that `judge_key` and `people_and_judge_key` return; no metric's name ends so."""


def judge_key(metric: str) -> str:
    """Return the key of a judge's votes by a metric, and of the sums over units about which only a judge voted."""
    return metric + _JUDGE


def people_and_judge_key(metric: str) -> str:
    """Return the key of the sums over units about which people and a judge voted."""
    return metric + _BOTH


def is_judged(key: str) -> bool:
    """Tell whether a key of sums is of a metric with the help of a judge."""
    return key.endswith((_JUDGE, _BOTH))


def judged_units(votes: Mapping[str, tuple[int, int]], own: Collection[str]) -> Iterable[tuple[str, Unit]]:
    """Yield the contributions of a unit's votes: y, and x where a judge and people both voted.

    If both voted, y is the people's mean and x the judge's, else y is the judge's.
    votes: sums and numbers by metric, a judge's by `judge_key`.
    own: the project's metrics.
    """
    for key, (total, num) in votes.items():
        metric = key.removesuffix(_JUDGE)
        if key == metric or metric not in own or num <= 0:
            continue
        by_people, num_people = votes.get(metric, (0, 0))
        if num_people > 0:
            yield people_and_judge_key(metric), Unit(_mean(by_people, num_people), _mean(total, num))
        else:
            yield key, Unit(_mean(total, num))


class JudgedEffect(msgspec.Struct, frozen=True):
    """The results of a metric with the help of a judge, over the units that the judge voted about."""

    num_labelled: tuple[int, int]
    """By control and arm: units about which people voted as well."""
    num_judged: tuple[int, int]
    """By control and arm: units about which only the judge voted."""
    control: Mean
    """The mean of people's votes about the control, estimated with the help of the judge."""
    treatment: Mean
    """The mean of people's votes about the arm, estimated in the same way."""
    effect: Effect
    """The difference of the means of treatment and control; its interval holds at every look."""
    by_people: Effect
    """The effect on the labelled units alone, by people's votes and without the judge."""
    by_judge: float
    """The difference of the judge's own means, which has its bias."""
    judge_weights: tuple[float, float]
    """The weight of the judge in control and arm, in the latest epoch: 0 if the judge tells nothing about people."""


class JudgedComparison(msgspec.Struct, frozen=True):
    """One metric of one treatment beside the control, with the help of a judge. It decides nothing."""

    metric: str
    role: Role
    arm: int
    """The index of the arm."""
    alpha: float
    """The level of the intervals."""
    found: JudgedEffect


def judged_comparisons(
    sums: Mapping[tuple[str, int, int], Sums],
    listed: Iterable[tuple[str, Role, float]],
    num_arms: int,
    tightest_at: int,
) -> tuple[JudgedComparison, ...]:
    """Return the metrics by which people and a judge voted, beside the control.

    sums: the sums by key, epoch and arm.
    listed: each metric, its role and its level.
    tightest_at: as for `judged_effect`.
    num_arms: the number of the experiment's arms, the control included.
    """
    found = []
    for metric, role, alpha in listed:
        own = {
            place: each for place, each in sums.items() if place[0] in (judge_key(metric), people_and_judge_key(metric))
        }
        for arm in range(1, num_arms if own else 1):
            effect = judged_effect(own, metric, arm, alpha=alpha, tightest_at=tightest_at)
            if effect is not None:
                found.append(JudgedComparison(metric, role, arm, alpha, effect))
    return tuple(found)


class _Arm(msgspec.Struct, frozen=True):
    """One arm in one epoch."""

    labelled: Sums
    """The sums over the units about which people and the judge voted."""
    others: Sums
    """The sums over the units about which only the judge voted."""

    @property
    def is_enough(self) -> bool:
        return min(self.labelled.n, self.others.n) >= MIN_UNITS


def judged_effect(
    sums: Mapping[tuple[str, int, int], Sums], metric: str, arm: int, *, alpha: float, tightest_at: int
) -> JudgedEffect | None:
    """Return a metric of an arm beside the control with the help of a judge; None where too few units have votes.

    sums: the sums by key, epoch and arm.
    tightest_at: units of both arms at which the experiment's intervals are tightest. Epochs with fewer than two
    labelled or two other units of an arm are left out; the others are strata.
    alpha: the level of the interval.
    """
    epochs = []
    for epoch in sorted({epoch for _, epoch, _ in sums}):
        pair = [
            _Arm(*(sums.get((key(metric), epoch, one), NO_UNITS) for key in (people_and_judge_key, judge_key)))
            for one in (0, arm)
        ]
        if all(each.is_enough for each in pair):
            epochs.append(pair)
    if not epochs:
        return None
    control, treatment = (_estimates(epochs, one) for one in (0, 1))
    labelled, judged = control.powered.n + treatment.powered.n, control.num_judged + treatment.num_judged
    labels_at = max(LEAST_LABELS, round(tightest_at * LABELS_PER_UNIT))
    return JudgedEffect(
        (control.powered.n, treatment.powered.n),
        (control.num_judged, treatment.num_judged),
        control.powered,
        treatment.powered,
        effect_of_labels(
            control.powered, treatment.powered, labelled + judged, labelled, alpha=alpha, tightest_at=labels_at
        ),
        effect_of_labels(
            control.by_people, treatment.by_people, labelled, labelled, alpha=alpha, tightest_at=labels_at
        ),
        treatment.by_judge.mean - control.by_judge.mean,
        (control.judge_weight, treatment.judge_weight),
    )


class _Estimates(msgspec.Struct, frozen=True):
    """One arm over all epochs."""

    powered: Mean
    """The mean by people's votes with the help of the judge's."""
    by_people: Mean
    """The mean by people's votes alone."""
    by_judge: Mean
    """The mean by the judge's votes alone."""
    num_judged: int
    judge_weight: float
    """The weight of the judge's votes, in the latest epoch."""


def _estimates(epochs: Sequence[Sequence[_Arm]], one: int) -> _Estimates:
    """Return the estimates of the control (0) or the arm (1). epochs: both arms in each epoch."""
    own = [(_num_units(pair), pair[one].labelled, pair[one].others) for pair in epochs]
    powered = [(units, both.n, prediction_powered(both, others)) for units, both, others in own]
    scores = [(units, scores_of(both, others)) for units, both, others in own]
    return _Estimates(
        _stratified((units, n, each.mean, each.variance) for units, n, each in powered),
        _stratified((units, both.n, both.mean, both.variance / both.n) for units, both, _ in own),
        _stratified((units, each.n, each.mean, each.variance / each.n) for units, each in scores),
        sum(others.n for _, _, others in own),
        powered[-1][2].judge_weight,
    )


def _num_units(pair: Sequence[_Arm]) -> int:
    return sum(each.labelled.n + each.others.n for each in pair)


def _stratified(epochs: Iterable[tuple[int, int, float, float]]) -> Mean:
    """Return an arm's estimate over epochs, in the metric's integers.

    epochs: the units of both arms in each, the number that the estimate is of, the mean, and its variance.
    """
    return stratified([(units, Mean(n, mean / MILLION, variance / MILLION**2)) for units, n, mean, variance in epochs])


def _mean(total: int, num: int) -> int:
    """Return a mean in millionths, rounded to the nearest, halves up."""
    return (2 * total * MILLION + num) // (2 * num)
