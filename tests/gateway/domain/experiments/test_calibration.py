"""A tenant's own traffic tells what an experiment on it would find, and how often it would raise a false alarm."""

from __future__ import annotations

import math
import random

import pytest

from gateway.domain.errors import InvalidRequest
from gateway.domain.experiments.calibration import PastUnit, calibrate
from gateway.domain.experiments.sums import Unit


def past_units(num_units: int, num_days: int = 28) -> list[PastUnit]:
    """Return past units of which one in ten converts, with similar numbers each day."""
    rng = random.Random(7)
    return [PastUnit(100 + at * num_days // num_units, Unit(int(rng.random() < 0.1))) for at in range(num_units)]


def test_own_traffic_raises_few_false_alarms_where_an_ordinary_test_raises_many(full: bool) -> None:
    found = calibrate(past_units(8_400), "mean", num_runs=2_000 if full else 200)
    assert (found.num_units, found.num_days) == (8_400, 28)
    assert found.num_false <= 0.05 * found.num_runs
    assert found.num_false_fixed >= 0.15 * found.num_runs
    print(f"{found.num_false} and {found.num_false_fixed} of {found.num_runs} runs without an effect raise an alarm")


def test_more_days_find_smaller_effects_by_the_root_of_the_days() -> None:
    found = calibrate(past_units(2_800), "mean", num_runs=1)
    week, fortnight, month = found.horizons
    assert [each.units for each in found.horizons] == [700, 1_400, 2_800]
    assert week.effect / fortnight.effect == pytest.approx(math.sqrt(2))
    assert fortnight.effect / month.effect == pytest.approx(math.sqrt(2))
    assert month.relative == pytest.approx(month.effect / found.mean)
    # By hand: (1.959964 + 0.841621) * sqrt(2 * variance / (2800 / 2 / 1.62))
    assert month.effect == pytest.approx(2.801585 * math.sqrt(2 * found.deviation**2 / (1_400 / 1.62)), rel=1e-6)


def test_a_ratio_is_judged_by_units_and_not_by_requests() -> None:
    rng = random.Random(3)
    units = []
    for at in range(1_400):
        num_requests, rate = rng.randrange(1, 40), rng.random()
        units.append(PastUnit(at // 50, Unit(sum(rng.random() < rate for _ in range(num_requests)), d=num_requests)))
    found = calibrate(units, "ratio", num_runs=200)
    assert found.num_false <= 0.05 * found.num_runs
    assert found.mean == pytest.approx(sum(each.unit.y for each in units) / sum(each.unit.d for each in units))


def test_the_same_seed_gives_the_same_and_another_one_other_splits() -> None:
    alarms = [calibrate(past_units(2_800), "mean", num_runs=60, seed=seed).num_false_fixed for seed in (1, 1, 2, 3)]
    assert alarms[0] == alarms[1] and len(set(alarms)) > 1


@pytest.mark.parametrize(
    ("units", "num_runs", "param"),
    [([], 10, "metric"), (past_units(2, 1), 10, "metric"), (past_units(100), 20_001, "runs")],
)
def test_too_little_traffic_or_too_many_runs_are_refused(units: list[PastUnit], num_runs: int, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        calibrate(units, "mean", num_runs=num_runs)
    assert refused.value.param == param
