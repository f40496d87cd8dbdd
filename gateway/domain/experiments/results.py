"""The results of an experiment at one look: a pure function of its definition and of sums, without raw rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from gateway.domain.experiments import effects, guardrails, quantiles
from gateway.domain.experiments.definition import Experiment, Goal, Role
from gateway.domain.experiments.effects import Effect, Interval, Kind, Mean
from gateway.domain.experiments.feedback.judged import JudgedComparison, is_judged, judged_comparisons
from gateway.domain.experiments.guardrails import GuardrailVerdict
from gateway.domain.experiments.metrics import MetricName, read_metric
from gateway.domain.experiments.statistics import counts, many, sequences
from gateway.domain.experiments.statistics.counts import EpochCounts
from gateway.domain.experiments.sums import NO_UNITS, Sums


class UnitsRow(msgspec.Struct, frozen=True):
    """Units that were assigned first on one day, with or without outcomes."""

    day: int
    """The day in days since 1970."""
    epoch: int
    arm: int
    """The index of the arm."""
    units: int
    delivered: int
    """Units that got the arm's whole treatment with every request."""


class SumsRow(msgspec.Struct, frozen=True):
    """Sums of one metric over the units whose outcome windows closed on one day.

    Outcomes that still grow do not count, since no bound holds for looks at them. For guardrails on errors and
    refusals, a unit counts as soon as it has one.
    """

    day: int
    """The day in days since 1970."""
    epoch: int
    arm: int
    """The index of the arm."""
    metric: str
    sums: Sums


class TimesRow(msgspec.Struct, frozen=True):
    """Units by their time, for quantiles: one time a unit, in the buckets of `quantiles`."""

    day: int
    """The day in days since 1970."""
    epoch: int
    arm: int
    """The index of the arm."""
    metric: str
    counts: tuple[int, ...]
    """The number of units in each bucket."""


_Row = TypeVar("_Row", UnitsRow, SumsRow, TimesRow)


class Tally(msgspec.Struct, frozen=True):
    """The numbers from which results are computed."""

    shares: Mapping[int, tuple[float, ...]]
    """By epoch the part of units that each arm should get (`allocation.arm_shares`)."""
    units: Sequence[UnitsRow] = ()
    sums: Sequence[SumsRow] = ()
    times: Sequence[TimesRow] = ()
    not_analysed: Mapping[str, int] = {}
    """Requests by the reason why they got the control (`assignment.Reason`)."""
    days: int = 0
    """Whole days since the start."""


class ArmResult(msgspec.Struct, frozen=True):
    """The units of one arm."""

    name: str
    units: int
    compliance: float | None
    """The part of units that got the whole treatment; None without units.

    Results are of all units, by intention to treat.
    """


class Comparison(msgspec.Struct, frozen=True):
    """One metric of one treatment beside the control."""

    metric: str
    role: Role
    arm: int
    """The index of the arm."""
    control: Mean
    treatment: Mean
    effect: Effect
    relative: Interval | None
    """The interval relative to the control's mean; None where that mean may be 0."""
    alpha: float
    """The level of the intervals, by which the effect's E-value is judged as well."""
    is_better: bool | None
    """True: proven better at this look; False: proven worse; None: neither, or no goal is declared."""
    answered: tuple[float, float] | None
    """The part of control's and treatment's units that have a value; None where no unit was assigned."""


class QuantileComparison(msgspec.Struct, frozen=True):
    """A quantile of one metric in an arm beside that of the control."""

    metric: str
    role: Role
    arm: int
    """The index of the arm."""
    control: quantiles.QuantileInterval
    treatment: quantiles.QuantileInterval
    difference: Interval
    """The bounds of the milliseconds by which the arm's quantile exceeds the control's."""
    alpha: float
    """The significance level of the intervals."""


class Results(msgspec.Struct, frozen=True):
    """All results of an experiment at one look."""

    arms: tuple[ArmResult, ...]
    comparisons: tuple[Comparison, ...]
    quantiles: tuple[QuantileComparison, ...]
    discoveries: tuple[int, ...]
    """Indexes in `comparisons` of the secondary ones that e-BH keeps."""
    guardrails: tuple[GuardrailVerdict, ...]
    srm_log_e: float
    """The natural logarithm of the E-value against the declared split of units."""
    is_srm: bool
    """True if units are not split as declared (sample ratio mismatch): no other result is to be believed then."""
    not_analysed: Mapping[str, int]
    """The number of requests that are not analysed, by reason (`assignment.Reason`)."""
    may_decide: bool
    """True if the declared days have passed and the sample ratio holds."""
    judged: tuple[JudgedComparison, ...] = ()
    """The project's own metrics by which people and a judge voted."""


def results_of(experiment: Experiment, tally: Tally, own: Mapping[str, Kind] | None = None) -> Results:
    """Return the results of a look. own: the kind of each metric of the project's own."""
    own, tally = own or {}, sum_of_days(tally)
    num_arms = len(experiment.arms)
    epochs = _unit_counts(tally, num_arms)
    srm = counts.srm_log_e(list(epochs.values()))
    comparisons, by_quantile, found = [], [], []
    for metric, role, goal, margin in shown_metrics(experiment):
        read = read_metric(metric, own)
        if read is None:
            continue
        alpha = level_of(experiment, role)
        goal = goal or (read.metric.better if read.metric else None)
        for arm in range(1, num_arms):
            verdict: guardrails.Verdict = "unclear"
            log_e = None
            seen = tally
            if read.metric is not None and read.metric.needs_equal_weights:
                seen = of_equal_weights(tally, arm)
            if read.quantile is not None:
                quantile = _quantiles_of(experiment, seen, (metric, read, role), arm, alpha)
                by_quantile.append(quantile)
                verdict = _quantile_verdict(quantile, margin) if goal == "decrease" else "unclear"
            else:
                kind = kind_of(metric, own)
                assert kind is not None
                compared = comparison_of(experiment, seen, (metric, role, goal, kind), arm, alpha)
                if compared is not None:
                    comparisons.append(compared)
                if read.metric is not None and read.metric.is_error:
                    failed = {epoch: _errors(tally, metric, epoch, num_arms) for epoch in epochs}
                    verdict, log_e = guardrails.errors_verdict(guardrails.counts_of_pair(failed, 0, arm))
                elif compared is not None and goal is not None:
                    verdict = guardrails.interval_verdict(compared.relative, goal, margin)
            if role == "guardrail":
                found.append(GuardrailVerdict(metric, arm, verdict, log_e))
    return Results(
        tuple(_arm_result(experiment, tally, arm) for arm in range(num_arms)),
        tuple(comparisons),
        tuple(by_quantile),
        _discoveries(comparisons, experiment.analysis.alpha),
        tuple(found),
        srm,
        counts.is_beyond(srm, counts.SRM_ALPHA),
        tally.not_analysed,
        tally.days >= experiment.analysis.min_days and not counts.is_beyond(srm, counts.SRM_ALPHA),
        judged_comparisons(
            {(row.metric, row.epoch, row.arm): row.sums for row in tally.sums if is_judged(row.metric)},
            [(metric, role, level_of(experiment, role)) for metric, role, _, _ in shown_metrics(experiment)],
            num_arms,
            experiment.analysis.tightest_at,
        ),
    )


def daily_results(
    experiment: Experiment, tally: Tally, own: Mapping[str, Kind] | None = None
) -> list[tuple[int, Results]]:
    """Return the results that a look at the end of each day would show, oldest first.

    Counts of requests are the present ones.

    own: the kinds of the project's own metrics by name; None: there are none.
    """
    units, sums, times = _by_day(tally.units), _by_day(tally.sums), _by_day(tally.times)
    running, looks = msgspec.structs.replace(tally, units=(), sums=(), times=()), []
    for day in sorted(units.keys() | sums.keys() | times.keys()):
        running = sum_of_days(
            msgspec.structs.replace(
                running,
                units=[*running.units, *units.get(day, ())],
                sums=[*running.sums, *sums.get(day, ())],
                times=[*running.times, *times.get(day, ())],
            )
        )
        looks.append((day, results_of(experiment, running, own)))
    return looks


def _by_day(rows: Sequence[_Row]) -> dict[int, list[_Row]]:
    found: dict[int, list[_Row]] = {}
    for row in rows:
        found.setdefault(row.day, []).append(row)
    return found


def sum_of_days(tally: Tally) -> Tally:
    """Return the tally with the rows of all days added up, as of the last day."""
    day = max((row.day for row in tally.units), default=0)
    units: dict[tuple[int, int], tuple[int, int]] = {}
    for row in tally.units:
        known = units.get((row.epoch, row.arm), (0, 0))
        units[row.epoch, row.arm] = known[0] + row.units, known[1] + row.delivered
    sums: dict[tuple[int, int, str], Sums] = {}
    for each in tally.sums:
        key = each.epoch, each.arm, each.metric
        sums[key] = sums.get(key, NO_UNITS) + each.sums
    times: dict[tuple[int, int, str], list[tuple[int, ...]]] = {}
    for timed in tally.times:
        times.setdefault((timed.epoch, timed.arm, timed.metric), []).append(timed.counts)
    return msgspec.structs.replace(
        tally,
        units=[UnitsRow(day, *key, *both) for key, both in units.items()],
        sums=[SumsRow(day, *key, total) for key, total in sums.items()],
        times=[TimesRow(day, *key, tuple(map(sum, zip(*listed, strict=True)))) for key, listed in times.items()],
    )


def of_equal_weights(tally: Tally, arm: int) -> Tally:
    """Return the tally of only those epochs in which an arm had the control's share of the units.

    In other epochs the prompts of the smaller arm are cached less, which makes it slower without any effect.
    """
    shares = {epoch: each for epoch, each in tally.shares.items() if math.isclose(each[0], each[arm])}
    return msgspec.structs.replace(
        tally,
        shares=shares,
        units=[row for row in tally.units if row.epoch in shares],
        sums=[row for row in tally.sums if row.epoch in shares],
        times=[row for row in tally.times if row.epoch in shares],
    )


def shown_metrics(experiment: Experiment) -> list[tuple[str, Role, Goal | None, float]]:
    """Return the metrics that an experiment's results show, each with its role, goal and margin."""
    metrics = experiment.metrics
    return [
        *((each.metric, "primary", each.goal, 0.0) for each in metrics.primary),
        *((each.metric, "guardrail", each.goal, each.margin) for each in metrics.guardrails),
        *((each, "secondary", None, 0.0) for each in metrics.secondary),
    ]


def level_of(experiment: Experiment, role: Role) -> float:
    """Return the significance level of a metric: primary ones share that of the experiment."""
    if role == "guardrail":
        return guardrails.ALPHA
    alpha = experiment.analysis.alpha
    num_primary = len(experiment.metrics.primary)
    return many.alpha_of_each(alpha, num_primary, len(experiment.arms)) if role == "primary" else alpha


def kind_of(metric: str, own: Mapping[str, Kind]) -> Kind | None:
    """Return how a metric is computed from sums; None for quantiles and unknown metrics."""
    read = read_metric(metric, own)
    if read is None or read.quantile is not None:
        return None
    if read.metric is None:
        return own[metric]
    return "ratio" if read.metric.per_request else "mean"


def _unit_counts(tally: Tally, num_arms: int) -> dict[int, EpochCounts]:
    return {
        epoch: EpochCounts(
            tuple(
                sum(row.units for row in tally.units if (row.epoch, row.arm) == (epoch, arm)) for arm in range(num_arms)
            ),
            shares,
        )
        for epoch, shares in sorted(tally.shares.items())
    }


def _errors(tally: Tally, metric: str, epoch: int, num_arms: int) -> EpochCounts:
    rows = [row for row in tally.sums if row.metric == metric and row.epoch == epoch]
    failed = tuple(round(sum(row.sums.y for row in rows if row.arm == arm)) for arm in range(num_arms))
    return EpochCounts(failed, tally.shares[epoch])


def _arm_result(experiment: Experiment, tally: Tally, arm: int) -> ArmResult:
    rows = [row for row in tally.units if row.arm == arm]
    units, delivered = sum(row.units for row in rows), sum(row.delivered for row in rows)
    return ArmResult(experiment.arms[arm].name, units, delivered / units if units else None)


def comparison_of(
    experiment: Experiment, tally: Tally, what: tuple[str, Role, Goal | None, Kind], arm: int, alpha: float
) -> Comparison | None:
    """Return a metric of an arm beside the control; None where too few units have a value.

    what: the metric, its role, goal and kind. alpha: the level at which an effect counts as proven.
    """
    metric, role, goal, kind = what
    sums: dict[tuple[int, int], Sums] = {}
    for row in tally.sums:
        if row.metric == metric and row.arm in (0, arm):
            key = row.epoch, row.arm
            sums[key] = sums.get(key, NO_UNITS) + row.sums
    means = effects.compare_arms(effects.by_epoch(sums, 0, arm), kind, adjusted=kind == "mean")
    if means is None:
        return None
    control, treatment = means
    tightest_at = experiment.analysis.tightest_at
    effect = effects.effect_of(control, treatment, alpha, tightest_at)
    radius = sequences.t_radius(effect.n - 2, sequences.information(effect.n, tightest_at, alpha), alpha)
    valued = [sum(each.n for (_, own_arm), each in sums.items() if own_arm == one) for one in (0, arm)]
    units = [sum(row.units for row in tally.units if row.arm == one) for one in (0, arm)]
    return Comparison(
        metric,
        role,
        arm,
        control,
        treatment,
        effect,
        effects.relative_interval(control, treatment, radius),
        alpha,
        guardrails.is_proven(effect, goal, alpha) if goal else None,
        (valued[0] / units[0], valued[1] / units[1]) if all(units) else None,
    )


def _quantiles_of(
    experiment: Experiment, tally: Tally, what: tuple[str, MetricName, Role], arm: int, alpha: float
) -> QuantileComparison:
    """Compare a quantile over the epochs that have the same shares of both arms as the newest one with both.

    Pooling others would show a ramp as an effect.

    what: the metric, the reading of its values, and its role. alpha: the level of the interval.
    """
    metric, read, role = what
    both = {epoch: each for epoch, each in tally.shares.items() if each[0] and each[arm]}
    newest = both[max(both)] if both else ()
    alike = {epoch for epoch, each in both.items() if math.isclose(each[0] * newest[arm], each[arm] * newest[0])}
    intervals = []
    for one in (0, arm):
        total = [0] * (len(quantiles.EDGES_MS) + 1)
        for row in tally.times:
            if row.metric == read.name and row.arm == one and row.epoch in alike:
                total = [a + b for a, b in zip(total, row.counts, strict=True)]
        concentration = experiment.analysis.tightest_at / 2 / sequences.tightest_u(alpha / 2)
        intervals.append(quantiles.quantile_interval(total, read.quantile or 0.5, concentration, alpha / 2))
    control, treatment = intervals
    difference = Interval(*quantiles.difference(control, treatment))
    return QuantileComparison(metric, role, arm, control, treatment, difference, alpha)


def _quantile_verdict(found: QuantileComparison, margin: float) -> guardrails.Verdict:
    if found.treatment.low > found.control.high * (1 + margin):
        return "harmed"
    return "safe" if found.treatment.high < found.control.low * (1 + margin) else "unclear"


def _discoveries(comparisons: Sequence[Comparison], alpha: float) -> tuple[int, ...]:
    secondary = [index for index, each in enumerate(comparisons) if each.role == "secondary"]
    rejected = many.e_bh([comparisons[index].effect.log_e for index in secondary], alpha)
    return tuple(secondary[index] for index in rejected)
