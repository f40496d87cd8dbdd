"""The judging of two arms' answers by a model, without its habits deciding: orders, lengths, human labels. Pure.

A judge prefers what it is shown first, what is longer, and what sounds like itself (Zheng et al., arXiv 2306.05685). So

- each pair is shown in both orders, and a judge that follows the place instead of the answer says nothing;
- a judge may serve no arm that it judges, nor share the adapter of one;
- scores are taken at equal length: the part of a score that a length explains is removed, with one slope over all arms;
- human labels on a part of the pairs, drawn at random, take out what bias is left (`statistics.judges`).

Nothing here calls a model: whoever asks the judge hands over verdicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log1p
from statistics import fmean
from typing import Literal

import msgspec

from gateway.domain.errors import InvalidRequest
from gateway.domain.experiments.effects import Effect, Mean
from gateway.domain.experiments.statistics.judges import effect_of_labels, prediction_powered
from gateway.domain.experiments.sums import Unit, sums_of

Verdict = Literal["first", "second", "tie"]
"""A judge's verdict on two answers, by the places in which they were shown."""


class Pair(msgspec.Struct, frozen=True):
    """Two answers to one request, of the control and of an arm, as a judge has compared them in both orders."""

    control_first: Verdict
    """The verdict where the control's answer was shown first."""
    arm_first: Verdict
    """The verdict where the arm's answer was shown first."""
    control_chars: int
    """The length of the control's answer in characters."""
    arm_chars: int
    """The length of the arm's answer in characters."""
    label: float | None = None
    """A person's verdict on the pair, in the numbers of `score`; None where nobody was asked."""

    @property
    def score(self) -> float:
        """The score: 1 where the judge prefers the arm in both orders, 0 where the control in both, else one half."""
        prefers_arm = (self.control_first == "second") + (self.arm_first == "first")
        prefers_control = (self.control_first == "first") + (self.arm_first == "second")
        return (2 + prefers_arm - prefers_control) / 4

    @property
    def follows_place(self) -> bool:
        """Tell whether the judge chose the same place in both orders, whichever answer was there."""
        return self.control_first == self.arm_first != "tie"

    @property
    def length_ratio(self) -> float:
        """The log of how much longer the arm's answer is, so that twice and half as long are opposites."""
        return log1p(self.arm_chars) - log1p(self.control_chars)


class Preference(msgspec.Struct, frozen=True):
    """The rate at which people would prefer the arm to the control, and the rate by a judge alone."""

    num_labelled: int
    """Pairs that people have labelled."""
    num_judged: int
    """Pairs that nobody but the judge has seen."""
    judge_weight: float
    """The weight of the judge's scores beside labels: 0 where the scores tell nothing about labels."""
    follows_place: float
    """The part of the pairs in which the judge chose the same place in both orders."""
    by_judge: float
    """The mean score of the judge, which is not to be believed without labels."""
    rectified: Effect
    """The mean label less one half: 0 means that neither is preferred. Its interval holds at every look."""


def check_judge(judge: str, served: Sequence[str], field: str = "judge.model") -> None:
    """Check that a judge is none of the models that it judges.

    served: the model string of each arm. field: the client's name of the judge's field, for the error.

    Raises InvalidRequest: when an arm serves the judge's model or adapter, in any version.
    """
    for model in served:
        if model.partition("@")[0] == judge.partition("@")[0]:
            raise InvalidRequest(
                f"The judge '{judge}' serves an arm: a model prefers answers like its own. Choose another one.",
                param=field,
            )


def at_equal_length(pairs: Sequence[Pair]) -> list[float]:
    """Return the score of each pair as it would be at equal lengths: the part that length explains is removed."""
    scores, ratios = [pair.score for pair in pairs], [pair.length_ratio for pair in pairs]
    if len(pairs) < 3:
        return scores
    score_mean, ratio_mean = fmean(scores), fmean(ratios)
    spread = sum((ratio - ratio_mean) ** 2 for ratio in ratios)
    together = sum((r - ratio_mean) * (s - score_mean) for r, s in zip(ratios, scores, strict=True))
    slope = together / spread if spread else 0.0
    return [score - slope * ratio for score, ratio in zip(scores, ratios, strict=True)]


def preference(pairs: Sequence[Pair], *, alpha: float, tightest_at: int) -> Preference | None:
    """Return people's preference for an arm over the control; None with fewer than two labels or two other pairs.

    pairs: one of each unit, so that they are independent; the labelled ones were drawn at random.
    tightest_at: pairs at which the interval is tightest, counted as labels.
    alpha: the level of the interval.
    """
    scores = at_equal_length(pairs)
    labelled = [(pair.label, score) for pair, score in zip(pairs, scores, strict=True) if pair.label is not None]
    others = [score for pair, score in zip(pairs, scores, strict=True) if pair.label is None]
    if len(labelled) < 2 or len(others) < 2:
        return None
    judged = prediction_powered(sums_of(Unit(*each) for each in labelled), sums_of(map(Unit, others)))
    num_labelled = len(labelled)
    return Preference(
        num_labelled,
        len(others),
        judged.judge_weight,
        fmean(pair.follows_place for pair in pairs),
        fmean(pair.score for pair in pairs),
        effect_of_labels(
            Mean(0, 0.5, 0.0),
            Mean(num_labelled, judged.mean, judged.variance),
            len(pairs),
            num_labelled,
            num_arms=1,
            alpha=alpha,
            tightest_at=tightest_at,
        ),
    )
