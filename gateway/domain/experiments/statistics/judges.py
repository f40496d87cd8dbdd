"""A judge's scores beside few human labels, without the judge's bias: PPI++ (Angelopoulos et al., arXiv 2311.01453)."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, variance

import msgspec


class Judged(msgspec.Struct, frozen=True):
    """The mean label of one arm."""

    mean: float
    variance: float
    """Of the mean."""
    judge_weight: float
    """Lambda: 0 where the judge tells nothing about labels."""


def prediction_powered(labels: Sequence[float], scores: Sequence[float], other_scores: Sequence[float]) -> Judged:
    """Return the mean label of an arm from n labelled and N merely judged answers.

    labels, scores: n human labels and the judge's scores of the same answers, which were drawn at random.
    other_scores: N scores of the rest. With f, g the scores: lambda = Cov(y, f) / (Var(f and g) (1 + n/N)),
    mean = mean(y) + lambda (mean(g) - mean(f)), Var = Var(y - lambda f) / n + lambda**2 Var(g) / N.
    Raises ValueError: when there are fewer than two of either, or labels and scores differ in number.
    """
    n, num_other = len(labels), len(other_scores)
    if n < 2 or num_other < 2 or len(scores) != n:
        raise ValueError("two labelled and two other answers are needed, and a score for each label")
    y_mean, f_mean = fmean(labels), fmean(scores)
    covariance = sum((y - y_mean) * (f - f_mean) for y, f in zip(labels, scores, strict=True)) / (n - 1)
    spread = variance([*scores, *other_scores])
    weight = covariance / (spread * (1 + n / num_other)) if spread else 0.0
    residuals = [y - weight * f for y, f in zip(labels, scores, strict=True)]
    return Judged(
        y_mean + weight * (fmean(other_scores) - f_mean),
        variance(residuals) / n + weight**2 * variance(other_scores) / num_other,
        weight,
    )
