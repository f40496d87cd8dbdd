"""A judge's preference for an order, for length or for itself does not decide; few human labels correct the remaining
bias."""

from __future__ import annotations

import math
import random

import pytest

from gateway.domain.errors import InvalidRequest
from gateway.domain.experiments.statistics.judges import prediction_powered
from gateway.domain.experiments.statistics.judging import Pair, Verdict, at_equal_length, check_judge, preference
from gateway.domain.experiments.sums import Unit, sums_of

NUM_RUNS, NUM_RUNS_FULL = 120, 2_000
NUM_PAIRS = 2_000
HUMAN_SHARE = 0.05
JUDGE_IS_OFF = 0.2
Z = 1.959964


def pair(control_first: Verdict, arm_first: Verdict, control_chars: int = 100, arm_chars: int = 100) -> Pair:
    return Pair(control_first, arm_first, control_chars, arm_chars)


@pytest.mark.parametrize(
    ("control_first", "arm_first", "score", "follows_place"),
    [
        ("second", "first", 1.0, False),
        ("first", "second", 0.0, False),
        ("first", "first", 0.5, True),
        ("second", "second", 0.5, True),
        ("tie", "tie", 0.5, False),
        ("tie", "first", 0.75, False),
        ("first", "tie", 0.25, False),
    ],
)
def test_a_judge_that_follows_the_order_of_answers_gives_no_preference(
    control_first: Verdict, arm_first: Verdict, score: float, follows_place: bool
) -> None:
    judged = pair(control_first, arm_first)
    assert (judged.score, judged.follows_place) == (score, follows_place)


def test_the_preference_for_longer_answers_is_removed() -> None:
    longer = [pair("second", "first", 100, 400) for _ in range(30)] + [pair("first", "second", 400, 100)] * 10
    assert sum(each.score for each in longer) == 30, "the judge always prefers the longer answer"
    assert at_equal_length(longer) == pytest.approx([0.5] * 40)
    equal = [pair("second", "first"), pair("first", "second"), pair("second", "first")]
    assert at_equal_length(equal) == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("judge", ["base:support", "base:support@7", "tiny", "base:support@2"])
def test_a_judge_that_serves_an_arm_is_refused(judge: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_judge(judge, ["tiny", "base:support@2"])
    assert caught.value.param == "judge.model"


@pytest.mark.parametrize("judge", ["base", "base:critic@2", "tiny:support"])
def test_a_judge_that_serves_no_arm_is_allowed(judge: str) -> None:
    check_judge(judge, ["tiny", "base:support@2"])


def judged_pairs(chance: random.Random, truth: float) -> list[Pair]:
    """Return pairs of which people prefer the arm's answer with probability `truth`, a judge by 20 points more often.

    The judge follows the place in a fifth of the pairs, and lengths. A twentieth of the pairs has a label.
    """
    pairs = []
    for _ in range(NUM_PAIRS):
        label = float(chance.random() < truth)
        lengths = chance.randint(50, 500), chance.randint(50, 500)
        says_arm = label > 0
        if chance.random() < 0.25:
            says_arm = chance.random() < 0.5
        if not says_arm and chance.random() < JUDGE_IS_OFF / (1 - truth):
            says_arm = True
        if chance.random() < 0.2:
            says_arm = lengths[1] > lengths[0]
        place: Verdict | None = "first" if chance.random() < 0.2 else None
        verdicts: tuple[Verdict, Verdict] = ("second", "first") if says_arm else ("first", "second")
        first, second = (place, place) if place is not None else verdicts
        pairs.append(Pair(first, second, *lengths, label if chance.random() < HUMAN_SHARE else None))
    return pairs


def test_intervals_hold_the_truth_with_a_judge_that_is_20_points_off(full: bool) -> None:
    chance, truth = random.Random(5), 0.45
    num_runs = NUM_RUNS_FULL if full else NUM_RUNS
    held = watched = by_judge_alone = narrower = 0
    for _ in range(num_runs):
        pairs = judged_pairs(chance, truth)
        scores = at_equal_length(pairs)
        labels = [each.label for each in pairs if each.label is not None]
        of_labelled = [score for each, score in zip(pairs, scores, strict=True) if each.label is not None]
        others = [score for each, score in zip(pairs, scores, strict=True) if each.label is None]
        found = prediction_powered(sums_of(map(Unit, labels, of_labelled)), sums_of(map(Unit, others)))
        se = math.sqrt(found.variance)
        held += abs(found.mean - truth) <= Z * se
        alone_se = math.sqrt(0.25 / len(labels))
        narrower += se < alone_se
        judge_mean = sum(scores) / len(scores)
        by_judge_alone += abs(judge_mean - truth) <= Z * math.sqrt(0.25 / len(scores))
        shown = preference(pairs, alpha=0.05, tightest_at=100)
        assert shown is not None
        watched += shown.rectified.interval.low <= truth - 0.5 <= shown.rectified.interval.high
    three_se = 3 * math.sqrt(0.05 * 0.95 / num_runs)
    assert 0.95 - 0.015 - three_se <= held / num_runs <= 0.95 + 0.015 + three_se
    assert watched / num_runs >= 0.97, "an interval that holds at every look holds more often at one"
    assert by_judge_alone / num_runs <= 0.05, "the judge alone is wrong, and sure of it"
    assert narrower / num_runs >= 0.8, "the judge is of use"


def test_nothing_is_said_without_labels_or_without_a_judge() -> None:
    pairs = judged_pairs(random.Random(1), 0.5)
    unlabelled = [each for each in pairs if each.label is None]
    labelled = [each for each in pairs if each.label is not None]
    assert preference(unlabelled, alpha=0.05, tightest_at=100) is None
    assert preference(labelled, alpha=0.05, tightest_at=100) is None
    assert preference([*unlabelled, *labelled[:2]], alpha=0.05, tightest_at=100) is not None
