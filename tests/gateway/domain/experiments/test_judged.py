"""Results with the help of a judge: the judge's bias makes no effect and hides none, however few labels there are."""

from __future__ import annotations

import math
import random

import pytest

from gateway.domain.experiments.feedback.judged import (
    MILLION,
    JudgedEffect,
    is_judged,
    judge_key,
    judged_effect,
    judged_units,
    people_and_judge_key,
)
from gateway.domain.experiments.statistics.judges import prediction_powered
from gateway.domain.experiments.sums import Sums, Unit, sums_of

NUM_RUNS = 120
HUMAN_SHARE = 0.05
Key = tuple[str, int, int]


def random_arm_sums(chance: random.Random, mean: float, off: float, arm: int, epoch: int = 1) -> dict[Key, Sums]:
    """Return the random sums of an arm with votes of a judge on all answers, and of people on a twentieth of them.

    mean: the probability that people like an answer. off: the probability that the judge likes an answer that it would
    otherwise dislike.
    """
    units = []
    for _ in range(1_000):
        label = int(chance.random() < mean)
        score = label if chance.random() < 0.8 else int(chance.random() < 0.5)
        score = 1 if not score and chance.random() < off else score
        votes = {judge_key("good"): (score, 1)} | ({"good": (label, 1)} if chance.random() < HUMAN_SHARE else {})
        units += judged_units(votes, {"good"})
    return {
        (key, epoch, arm): sums_of(unit for name, unit in units if name == key)
        for key in (people_and_judge_key("good"), judge_key("good"))
    }


def effect(sums: dict[Key, Sums]) -> JudgedEffect:
    found = judged_effect(sums, "good", 1, alpha=0.05, tightest_at=2_000)
    assert found is not None
    return found


def test_a_judge_that_is_kinder_to_one_arm_makes_no_effect_and_hides_none() -> None:
    chance, held, by_judge, narrower = random.Random(9), 0, 0, 0
    for _ in range(NUM_RUNS):
        found = effect(random_arm_sums(chance, 0.5, 0.0, 0) | random_arm_sums(chance, 0.5, 0.4, 1))
        held += found.effect.interval.low <= 0 <= found.effect.interval.high
        by_judge += found.by_judge > 0.1
        narrower += found.effect.se < found.by_people.se
    assert held / NUM_RUNS >= 0.95
    assert by_judge == NUM_RUNS, "the judge alone would have it always"
    assert narrower / NUM_RUNS >= 0.9
    better = effect(random_arm_sums(chance, 0.2, 0.4, 0) | random_arm_sums(chance, 0.8, 0.0, 1))
    assert better.effect.interval.low > 0
    assert better.effect.log_e >= -math.log(0.05), "0 leaves the interval as the E-value says"


def test_a_ramp_with_a_judge_is_no_effect() -> None:
    """The arms get 90 and 10 % of units in a good week, and 50 % each in a bad week; they are equally good in each."""
    chance, held = random.Random(3), 0
    for _ in range(40):
        sums: dict[Key, Sums] = {}
        for epoch, mean, shares in ((1, 0.9, (900, 100)), (2, 0.1, (500, 500))):
            for arm, num in enumerate(shares):
                both = [Unit(label := int(chance.random() < mean), label) for _ in range(num // 5)]
                others = [Unit(int(chance.random() < mean)) for _ in range(num)]
                large = (
                    sums_of(Unit(each.y * MILLION, each.x * MILLION) for each in both),
                    sums_of(Unit(each.y * MILLION) for each in others),
                )
                for key, each in zip((people_and_judge_key("good"), judge_key("good")), large, strict=True):
                    sums[key, epoch, arm] = each
        found = effect(sums)
        held += found.effect.interval.low <= 0 <= found.effect.interval.high
    assert held >= 38
    assert found.num_labelled == (280, 120) and found.num_judged == (1_400, 600)


def test_each_arm_is_what_the_formula_gives() -> None:
    chance = random.Random(4)
    sums = random_arm_sums(chance, 0.5, 0.2, 0) | random_arm_sums(chance, 0.6, 0.2, 1)
    found = effect(sums)
    for arm, mean in enumerate((found.control, found.treatment)):
        own = prediction_powered(sums[people_and_judge_key("good"), 1, arm], sums[judge_key("good"), 1, arm])
        assert (mean.mean, mean.variance) == pytest.approx((own.mean / MILLION, own.variance / MILLION**2))
        assert found.judge_weights[arm] == own.judge_weight


def test_a_unit_has_the_mean_of_its_votes_and_no_judge_is_in_the_metric_itself() -> None:
    votes = {"good": (2, 3), judge_key("good"): (1, 2), judge_key("other"): (7, 2), judge_key("gone"): (1, 1)}
    assert dict(judged_units(votes, {"good", "other"})) == {
        people_and_judge_key("good"): Unit(666_667, 500_000),
        judge_key("other"): Unit(3_500_000),
    }
    assert dict(judged_units({"good": (2, 3)}, {"good"})) == {}, "people alone"
    assert is_judged(judge_key("good")) and is_judged(people_and_judge_key("good")) and not is_judged("good.judge")


@pytest.mark.parametrize("missing", [people_and_judge_key("good"), judge_key("good")])
def test_nothing_is_said_without_labels_or_without_a_judge(missing: str) -> None:
    chance = random.Random(1)
    sums = random_arm_sums(chance, 0.5, 0.0, 0) | random_arm_sums(chance, 0.5, 0.0, 1)
    sums[missing, 1, 1] = sums_of([Unit(1, 1)])
    assert judged_effect(sums, "good", 1, alpha=0.05, tightest_at=2_000) is None
