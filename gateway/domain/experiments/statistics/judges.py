"""A judge's scores beside few human labels, without the judge's bias: PPI++ (Angelopoulos et al., arXiv 2311.01453)."""

from __future__ import annotations

import math

import msgspec

from gateway.domain.experiments.effects import Effect, Interval, Mean
from gateway.domain.experiments.statistics.sequences import information, t_log_e, t_radius
from gateway.domain.experiments.sums import Sums


class MeanLabel(msgspec.Struct, frozen=True):
    """The mean label of one arm."""

    mean: float
    variance: float
    """The variance of the mean."""
    judge_weight: float
    """Lambda, the weight of the judge's scores: 0 where they tell nothing about labels."""


def prediction_powered(labelled: Sums, others: Sums) -> MeanLabel:
    """Return the mean label of an arm from n labelled and N merely judged answers.

    labelled: sums in which y is a label and x the judge's score of the same answer; these answers were drawn at random.
    others: sums in which y is the judge's score of each other answer. With f, g the scores: lambda = Cov(y, f) / (Var(f
    and g) (1 + n/N)), mean = mean(y) + lambda (mean(g) - mean(f)), Var = Var(y - lambda f) / n + lambda**2 Var(g) / N.
    Raises ValueError: when there are fewer than two of either.
    """
    if labelled.n < 2 or others.n < 2:
        raise ValueError("two labelled and two other answers are needed")
    covariance = labelled.covariance("x", "y")
    spread = scores_of(labelled, others).variance
    weight = covariance / (spread * (1 + labelled.n / others.n)) if spread else 0.0
    residual = labelled.variance + weight**2 * labelled.covariance("x", "x") - 2 * weight * covariance
    return MeanLabel(
        labelled.mean + weight * (others.mean - labelled.x / labelled.n),
        max(0.0, residual) / labelled.n + weight**2 * others.variance / others.n,
        weight,
    )


def scores_of(labelled: Sums, others: Sums) -> Sums:
    """Return the sums of all scores of the judge, in which y is the score."""
    return Sums(labelled.n + others.n, labelled.x + others.y, labelled.xx + others.yy)


def effect_of_labels(
    control: Mean, treatment: Mean, num: int, num_labelled: int, *, alpha: float, tightest_at: int, num_arms: int = 2
) -> Effect:
    """Return an effect with an interval that holds at every look, learned from labels.

    num: answers of both arms, judged or labelled.
    tightest_at: labels of both arms at which the interval is tightest.
    num_arms: the number of means that were estimated.
    alpha: the level of the interval.
    """
    effect, se = treatment.mean - control.mean, math.sqrt(max(0.0, control.variance + treatment.variance))
    u = information(num_labelled, tightest_at, alpha)
    half = t_radius(num_labelled - num_arms, u, alpha) * se if se else math.inf
    log_e = t_log_e(effect / se, num_labelled - num_arms, u) if se else 0.0
    return Effect(num, effect, se, Interval(effect - half, effect + half), log_e)
