"""Puts results into words: the conclusions that a look allows, and those that it does not. Pure text, no I/O."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gateway.admin.experiments.wire_results import (
    Bounds,
    ComparisonResult,
    GuardrailResult,
    QuantileResult,
    SegmentSplit,
    Verdict,
)
from gateway.domain.experiments.ages import Trend
from gateway.domain.experiments.metrics import METRICS
from gateway.domain.percent import percent_text

DAY_SECONDS = 86_400


def difference_text(metric: str, value: float) -> str:
    """Return a difference of a metric's values in words: four digits, a sign, and a unit unless it is feedback."""
    name = metric.split(".")[0]
    if name in METRICS and name.endswith("_rate"):
        return f"{100 * value:+,.4g} percentage points"
    number = f"{value:+,.4g}" if abs(value) < 1e4 else f"{value:+,.0f}"
    return f"{number} {name.rsplit('_', 1)[1]}" if name in METRICS else number


def change_text(part: float) -> str:
    """Return a relative difference as a signed percentage.

    part: the difference as a part of the control's value.
    """
    return percent_text(part, is_signed=True)


def comparison_text(
    metric: str, arm: str, control: str, interval: Bounds, relative: Bounds | None, verdict: Verdict
) -> str:
    """Return a sentence on the difference of a metric between one arm and the control.

    interval, relative: the interval of the difference in the metric's unit, and as a part of the control's value;
    relative is None where the control may be 0.
    """
    if interval.low is None or interval.high is None:
        return f"{metric} in {arm}, compared with {control}: nothing is known yet."
    if relative is not None and relative.low is not None and relative.high is not None:
        between = f"{change_text(relative.low)} and {change_text(relative.high)}"
    else:
        between = f"{difference_text(metric, interval.low)} and {difference_text(metric, interval.high)}"
    proven = {
        "better": f"{arm} is better: that is proven",
        "worse": f"{arm} is worse: that is proven",
        "different": f"{arm} is different: that is proven",
        "unclear": "no difference is proven yet",
    }[verdict]
    return f"{metric} in {arm}, compared with {control}: between {between}; {proven}."


def judged_text(metric: str, arm: str, control: str, interval: Bounds) -> str:
    """Return a sentence on the difference of people's votes between one arm and the control, with a judge's help."""
    if interval.low is None or interval.high is None:
        return f"{metric} in {arm}, with the help of a judge, compared with {control}: nothing is known yet."
    return (
        f"{metric} in {arm}, by people and with the help of a judge, compared with {control}: between "
        f"{difference_text(metric, interval.low)} and {difference_text(metric, interval.high)}. That holds if people "
        "vote about units drawn at random."
    )


def quantile_text(metric: str, arm: str, control: str, found: Bounds, verdict: Verdict) -> str:
    """Return a sentence on the difference of a quantile between one arm and the control.

    found: the differences that are not excluded.
    """
    if found.low is None or found.high is None:
        return f"{metric} in {arm}, compared with {control}: nothing is known yet."
    proven = {"better": "that is better", "worse": "that is worse"}.get(verdict, "no difference is proven yet")
    return (
        f"{metric} in {arm}, compared with {control}: between {difference_text(metric, found.low)} and "
        f"{difference_text(metric, found.high)}; {proven}."
    )


def guardrail_text(metric: str, arm: str, verdict: str) -> str:
    """Return a sentence with the verdict of a guardrail."""
    found = {
        "harmed": "harm is proven",
        "safe": "no harm beyond the margin, which is proven",
        "unclear": "neither harm nor safety is proven yet",
    }[verdict]
    return f"{metric} in {arm}: {found}."


_SEGMENTS = {
    "api_key": "the API key {}",
    "endpoint": "{}",
    "service_tier": "the service tier {}",
    "gateway": "the gateway {}",
}


def segment_text(split: SegmentSplit) -> str:
    """Return a sentence that the units of a segment are not split as declared."""
    if split.kind == "stream":
        where = "streams" if split.value == "true" else "requests without a stream"
    else:
        where = _SEGMENTS[split.kind].format(split.name or split.value)
    counted = ", ".join(f"{arm.units:,} in {arm.name} ({arm.expected_units:,.0f} declared)" for arm in split.arms)
    return f"Units that came first with {where} are not split as declared: {counted}. Look for what loses some there."


def conclusion(
    comparisons: Sequence[ComparisonResult],
    quantiles: Sequence[QuantileResult],
    guardrails: Sequence[GuardrailResult],
    *,
    units: int,
    is_srm: bool,
    days: int,
    min_days: int,
    window_seconds: int,
    is_stopped: bool = False,
    chosen: str | None = None,
) -> str:
    """Return a sentence with the conclusion that a look allows, or why it allows none yet.

    units: the units that have taken part. is_srm: True if units are not split as declared (sample ratio mismatch).
    days, min_days: the days since the start, and the days before which nothing is to be decided. window_seconds: the
    length of the outcome window. is_stopped: True if no more units come. chosen: the arm that was decided for before
    the look; None: no arm was decided for.
    """
    if is_srm:
        return (
            "Units are not split as declared, so nothing here is to be believed. Find out why before anything else: "
            "one arm may lose requests before they are counted."
        )
    if not units:
        return "No unit has taken part yet." if chosen is None else f"No unit took part. {chosen} was chosen."
    sentences = []
    shown: list[ComparisonResult | QuantileResult] = [*comparisons, *quantiles]
    primary = [each for each in shown if each.role == "primary"]
    harmed = [each for each in guardrails if each.verdict == "harmed"]
    sentences += [each.text for each in harmed]
    if all(_is_unknown(each) for each in primary):
        sentences.append(
            f"Nothing may be concluded about the primary metrics yet: outcomes count once a unit's window of "
            f"{duration(window_seconds)} is over."
        )
    sentences += [each.text for each in primary if not _is_unknown(each)]
    if chosen is not None:
        sentences.append(f"{chosen} was chosen.")
    elif days < min_days:
        sentences.append(
            f"It was stopped after {days} of {days_declared(min_days)}: what shows may be of some weekdays alone."
            if is_stopped
            else f"Do not decide yet: {days} of {days_declared(min_days)} are over."
        )
    elif any(each.verdict in ("better", "worse") for each in primary):
        sentences.append("It may be decided. Read the interval, and not the point: at a stop the point is too large.")
    elif is_stopped:
        sentences.append("No more units come, and the question stays open.")
    else:
        sentences.append("More units make the intervals narrower; stopping now leaves the question open.")
    return " ".join(sentences)


def finite_or_none(value: float) -> float | None:
    """Return the number; None for an infinity or NaN, where nothing bounds the value."""
    return value if math.isfinite(value) else None


def _is_unknown(each: ComparisonResult | QuantileResult) -> bool:
    bounds = each.interval if isinstance(each, ComparisonResult) else each.difference
    return bounds.low is None or bounds.high is None


def days_declared(days: int) -> str:
    """Return the number of days before a decision, in words."""
    return f"{days:,} whole {'day' if days == 1 else 'days'} since the start"


def duration(seconds: int) -> str:
    """Return a length of time in the units that fit: 5 minutes, 7 days, 1 day and 12 hours."""
    parts = []
    for size, name in ((DAY_SECONDS, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        number, seconds = divmod(seconds, size)
        if number:
            parts.append(f"{number} {name}{'s' * (number != 1)}")
    if len(parts) < 2:
        return parts[0] if parts else "0 seconds"
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def trend_text(metric: str, arm: str, trend: Trend) -> str:
    """Return in words how an effect changes with the days since units' first requests."""
    match trend:
        case "fading":
            return (
                f"`{metric}`: the effect of `{arm}` is smaller on a unit's last day than on its first: that is proven."
            )
        case "growing":
            return (
                f"`{metric}`: the effect of `{arm}` is larger on a unit's last day than on its first: that is proven."
            )
    return (
        f"`{metric}`: it is not known yet whether the effect of `{arm}` changes with the days since a unit's first one."
    )
