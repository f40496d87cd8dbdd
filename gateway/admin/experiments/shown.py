"""Makes replies from results: names in place of indexes, and numbers in the metrics' own units.

Sums count times in microseconds and votes in millionths; replies show milliseconds and the numbers that voters gave.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping

import msgspec

from gateway.admin.experiments import wire_results as wire
from gateway.admin.experiments.words import (
    comparison_text,
    finite_or_none,
    guardrail_text,
    judged_text,
    quantile_text,
    trend_text,
)
from gateway.db.experiments.metrics import MetricRow
from gateway.domain.experiments.ages import AgeEffects
from gateway.domain.experiments.definition import Experiment
from gateway.domain.experiments.effects import Interval, Mean
from gateway.domain.experiments.feedback.judged import JudgedComparison
from gateway.domain.experiments.metrics import METRICS
from gateway.domain.experiments.quantiles import QuantileInterval
from gateway.domain.experiments.results import Comparison, QuantileComparison, Results
from gateway.domain.experiments.segments import SegmentResults, SegmentSplit

_EPOCH_DAY = datetime.date(1970, 1, 1)
_FROM_MICROSECONDS = 1e-3
_FROM_MILLIONTHS = 1e-6


def metric_scales(own: Collection[MetricRow] = ()) -> dict[str, float]:
    """Return the factors from sums to the metrics' own units, by metric; metrics with the factor 1 are left out."""
    built_in = dict.fromkeys((name for name in METRICS if name.endswith("_ms")), _FROM_MICROSECONDS)
    return built_in | {each.name: _FROM_MILLIONTHS for each in own if each.type != "boolean"}


def day_shown(day: int) -> str:
    """Return a day, counted since 1970, as a date such as 2026-11-24."""
    return (_EPOCH_DAY + datetime.timedelta(days=day)).isoformat()


def arms_shown(defined: Experiment, results: Results) -> list[wire.ArmResult]:
    """Return the number of units and the compliance of each arm."""
    return [wire.ArmResult(each.name, each.units, each.compliance) for each in results.arms]


def comparisons_shown(defined: Experiment, results: Results, scale: Mapping[str, float]) -> list[wire.ComparisonResult]:
    """Return the results of each metric and arm."""
    return [
        _comparison(defined, each, scale.get(each.metric, 1.0), is_discovery=at in results.discoveries)
        for at, each in enumerate(results.comparisons)
    ]


def judged_shown(defined: Experiment, results: Results, scale: Mapping[str, float]) -> list[wire.JudgedResult]:
    """Return the results of each metric by which people and a judge voted."""
    return [_judged_wire(defined, each, scale.get(each.metric, 1.0)) for each in results.judged]


def quantiles_shown(defined: Experiment, results: Results) -> list[wire.QuantileResult]:
    """Return the results of each quantile and arm."""
    return [_quantile(defined, each) for each in results.quantiles]


def guardrails_shown(defined: Experiment, results: Results) -> list[wire.GuardrailResult]:
    """Return the verdict of each guardrail about each arm."""
    actions = {each.metric: each.action for each in defined.metrics.guardrails}
    return [
        wire.GuardrailResult(
            metric=each.metric,
            arm=defined.arms[each.arm].name,
            action=actions.get(each.metric, "alert"),
            verdict=each.verdict,
            log_e=None if each.log_e is None else finite_or_none(each.log_e),
            text=guardrail_text(each.metric, defined.arms[each.arm].name, each.verdict),
        )
        for each in results.guardrails
    ]


def age_shown(defined: Experiment, each: AgeEffects, scale: Mapping[str, float]) -> wire.AgeResult:
    """Return the results of one metric and arm by days since exposure."""
    days = [
        (age, _comparison(defined, found, scale.get(each.metric, 1.0), is_discovery=False)) for age, found in each.days
    ]
    arm = defined.arms[each.arm].name
    return wire.AgeResult(
        metric=each.metric,
        role=each.role,
        arm=arm,
        trend=each.trend,
        text=trend_text(each.metric, arm, each.trend),
        days=[
            wire.AgeDay(
                day=age,
                control=found.control,
                treatment=found.treatment,
                effect=found.effect,
                interval=found.interval,
                relative_effect=found.relative_effect,
                relative_interval=found.relative_interval,
            )
            for age, found in days
        ],
    )


def split_shown(defined: Experiment, split: SegmentSplit, names: Mapping[str, str]) -> wire.SegmentSplit:
    """Return the split of a segment. names: the names of API keys by their ids."""
    return wire.SegmentSplit(
        kind=split.kind,
        value=split.value,
        name=names.get(split.value) if split.kind == "api_key" else None,
        arms=[
            wire.SegmentArm(arm.name, units, expected)
            for arm, units, expected in zip(defined.arms, split.units, split.expected, strict=True)
        ],
        is_srm=split.is_srm,
        srm_log_e=finite_or_none(split.log_e),
    )


def segment_shown(
    defined: Experiment, found: SegmentResults, scale: Mapping[str, float], names: Mapping[str, str], metric: str | None
) -> wire.SegmentResult:
    """Return the results of a look at a segment. metric: the only one to show; None: all."""
    comparisons = [
        _comparison(
            defined,
            each if at in found.discoveries else msgspec.structs.replace(each, is_better=None),
            scale.get(each.metric, 1.0),
            is_discovery=at in found.discoveries,
        )
        for at, each in enumerate(found.comparisons)
        if metric in (None, each.metric)
    ]
    return wire.SegmentResult(split=split_shown(defined, found.split, names), comparisons=comparisons)


def _comparison(defined: Experiment, each: Comparison, scale: float, *, is_discovery: bool) -> wire.ComparisonResult:
    arm, control = defined.arms[each.arm].name, defined.arms[0].name
    verdict: wire.Verdict = "unclear"
    if each.role != "secondary" or is_discovery:
        verdict = {True: "better", False: "worse", None: "different" if is_discovery else "unclear"}[each.is_better]
    interval = _bounds(each.effect.interval, scale)
    relative = _bounds(each.relative) if each.relative is not None else None
    return wire.ComparisonResult(
        metric=each.metric,
        role=each.role,
        arm=arm,
        control=_estimate(each.control, scale),
        treatment=_estimate(each.treatment, scale),
        effect=each.effect.effect * scale,
        interval=interval,
        relative_effect=each.effect.effect / each.control.mean if each.control.mean else None,
        relative_interval=relative,
        log_e=each.effect.log_e,
        p=each.effect.p,
        alpha=each.alpha,
        verdict=verdict,
        answered=None if each.answered is None else list(each.answered),
        text=comparison_text(each.metric, arm, control, interval, relative, verdict),
    )


def _judged_wire(defined: Experiment, each: JudgedComparison, scale: float) -> wire.JudgedResult:
    arm, control, found = defined.arms[each.arm].name, defined.arms[0].name, each.found
    interval = _bounds(found.effect.interval, scale)
    estimates = [
        wire.JudgedEstimate(
            num_labelled=found.num_labelled[at],
            num_judged=found.num_judged[at],
            mean=mean.mean * scale,
            se=mean.variance**0.5 * scale,
            judge_weight=found.judge_weights[at],
        )
        for at, mean in enumerate((found.control, found.treatment))
    ]
    return wire.JudgedResult(
        metric=each.metric,
        role=each.role,
        arm=arm,
        control=estimates[0],
        treatment=estimates[1],
        effect=found.effect.effect * scale,
        interval=interval,
        effect_by_people=found.by_people.effect * scale,
        interval_by_people=_bounds(found.by_people.interval, scale),
        effect_by_judge=found.by_judge * scale,
        alpha=each.alpha,
        text=judged_text(each.metric, arm, control, interval),
    )


def _quantile(defined: Experiment, each: QuantileComparison) -> wire.QuantileResult:
    arm, control = defined.arms[each.arm].name, defined.arms[0].name
    difference = _bounds(each.difference)
    verdict: wire.Verdict = "unclear"
    if each.difference.low > 0:
        verdict = "worse"
    elif each.difference.high < 0:
        verdict = "better"
    return wire.QuantileResult(
        metric=each.metric,
        role=each.role,
        arm=arm,
        control=_quantile_bounds(each.control),
        treatment=_quantile_bounds(each.treatment),
        difference=difference,
        alpha=each.alpha,
        verdict=verdict,
        text=quantile_text(each.metric, arm, control, difference, verdict),
    )


def _estimate(mean: Mean, scale: float) -> wire.Estimate:
    return wire.Estimate(mean.n, mean.mean * scale, mean.variance**0.5 * scale)


def _bounds(interval: Interval, scale: float = 1.0) -> wire.Bounds:
    return wire.Bounds(finite_or_none(interval.low * scale), finite_or_none(interval.high * scale))


def _quantile_bounds(each: QuantileInterval) -> wire.QuantileBounds:
    return wire.QuantileBounds(finite_or_none(each.estimate), finite_or_none(each.low), finite_or_none(each.high))
