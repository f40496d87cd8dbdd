"""Decides whether to pause an experiment: harm in an arm that is proven at every look, from sums alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from gateway.domain.experiments.definition import Goal, Guardrail
from gateway.domain.experiments.effects import Effect, Interval
from gateway.domain.experiments.statistics import counts
from gateway.domain.experiments.statistics.counts import EpochCounts

ALPHA = 0.01
"""The probability with which a guardrail of an experiment without effects may ever fire."""

Verdict = Literal["harmed", "safe", "unclear"]
"""The verdict of a guardrail.

harmed: proven worse than the margin allows. safe: proven not worse. unclear: neither is proven.
"""


class GuardrailVerdict(msgspec.Struct, frozen=True):
    """The verdict of one guardrail about one treatment."""

    metric: str
    arm: int
    """The index of the arm."""
    verdict: Verdict
    log_e: float | None = None
    """ln of the E-value against an equal share of errors; None for metrics that are judged by an interval."""


def errors_verdict(epochs: Sequence[EpochCounts], alpha: float = ALPHA) -> tuple[Verdict, float]:
    """Return the verdict by units with an error, and ln of the E-value against the arm having no influence.

    epochs: for each, (units with an error of control, of treatment) and the shares of both, which sum to 1.
    Harmed once E reaches 1 / alpha and the treatment has more than its share. Errors never prove safety.
    """
    log_e = counts.log_e_of_epochs(epochs, counts.ERROR_CONCENTRATION)
    more = sum(each.counts[1] - sum(each.counts) * each.shares[1] for each in epochs) > 0
    return ("harmed" if more and counts.is_beyond(log_e, alpha) else "unclear"), log_e


def interval_verdict(relative: Interval | None, goal: Goal, margin: float) -> Verdict:
    """Return the verdict that the interval of a relative effect allows.

    relative: None if there is no interval. margin: the change for the worse that is still accepted.
    """
    if relative is None:
        return "unclear"
    least, most = (relative.low, relative.high) if goal == "decrease" else (-relative.high, -relative.low)
    if least > margin:
        return "harmed"
    return "safe" if most < margin else "unclear"


def has_to_pause(guardrails: Sequence[Guardrail], found: Sequence[GuardrailVerdict]) -> list[GuardrailVerdict]:
    """Return the findings that pause the experiment by themselves: harm by a guardrail whose action is to pause."""
    pausing = {each.metric for each in guardrails if each.action == "pause"}
    return [each for each in found if each.verdict == "harmed" and each.metric in pausing]


def is_proven(effect: Effect, goal: Goal, alpha: float) -> bool | None:
    """Return True for an effect that is proven better at a level, False for a proven worse one, None for others.

    alpha: the level: the highest probability of a false alarm.
    """
    if not counts.is_beyond(effect.log_e, alpha):
        return None
    return (effect.effect > 0) == (goal == "increase")


def counts_of_pair(epochs: Mapping[int, EpochCounts], control: int, treatment: int) -> list[EpochCounts]:
    """Return the counts of two arms in each epoch in which both have a share; these shares are scaled to sum to 1.

    control, treatment: the indexes of the arms.
    """
    pairs = []
    for _, each in sorted(epochs.items()):
        a, b = each.shares[control], each.shares[treatment]
        if a > 0 and b > 0:
            pairs.append(EpochCounts((each.counts[control], each.counts[treatment]), (a / (a + b), b / (a + b))))
    return pairs
