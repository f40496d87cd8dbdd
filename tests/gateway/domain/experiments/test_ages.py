"""Effects by days since exposure: a novelty that wears off is distinguished from an effect that stays, and from
none."""

from __future__ import annotations

import numpy as np

from gateway.domain.experiments.ages import OF_ALL, AgeEffects, AgeRow, effects_by_age
from gateway.domain.experiments.definition import Analysis, Arm, Experiment, Metrics, Primary, Target, UnitSource
from gateway.domain.experiments.results import SumsRow, Tally, UnitsRow
from gateway.domain.experiments.sums import Unit, sums_of

NUM_DAYS, NUM_UNITS = 4, 200
RUNS, RUNS_FULL = 200, 2_000
EXPERIMENT = Experiment(
    "tone",
    "bot",
    UnitSource("user"),
    tuple(Arm(name, 1, Target("tiny")) for name in ("control", "warm")),
    Metrics((Primary("cost_nanos", "decrease"),)),
    analysis=Analysis(outcome_window_seconds=NUM_DAYS * 86_400, tightest_at=2 * NUM_UNITS),
)


def measured_effects(chance: np.random.Generator, effects: tuple[int, ...]) -> AgeEffects:
    """Return the measured effects by age (days since exposure) for units that spend about the same each day.

    effects: by how much the treatment's units spend less, by age.
    """
    ages, sums = [], []
    for arm in (0, 1):
        own = chance.normal(1_000, 80, NUM_UNITS)
        for age, less in enumerate(effects):
            spent = np.rint(own + chance.normal(0, 40, NUM_UNITS) - arm * less).astype(int).tolist()
            ages.append(AgeRow(age, 1, arm, "cost_nanos", sums_of(map(Unit, spent))))
        sums.append(SumsRow(0, 1, arm, OF_ALL, sums_of([Unit(1)] * NUM_UNITS)))
    units = [UnitsRow(0, 1, arm, NUM_UNITS, NUM_UNITS) for arm in (0, 1)]
    (found,) = effects_by_age(EXPERIMENT, Tally({1: (0.5, 0.5)}, units, sums), ages, {})
    return found


def test_days_without_an_effect_make_no_false_trend(full: bool) -> None:
    chance, num_runs, any_day, any_trend = np.random.default_rng(5), RUNS_FULL if full else RUNS, 0, 0
    for _ in range(num_runs):
        found = measured_effects(chance, (0,) * NUM_DAYS)
        spans = [each.effect.interval for _, each in found.days]
        any_day += any(span.low > 0 or span.high < 0 for span in spans)
        any_trend += found.trend != "unclear"
    assert any_day <= 0.05 * num_runs and any_trend <= 0.05 * num_runs
    for _ in range(20):
        assert measured_effects(chance, (60,) * NUM_DAYS).trend == "unclear", "it stays"


def test_a_novelty_that_wears_off_is_fading_and_a_habit_that_comes_is_growing() -> None:
    chance = np.random.default_rng(6)
    assert [measured_effects(chance, (90, 45, 10, 0)).trend for _ in range(20)] == ["fading"] * 20
    assert [measured_effects(chance, (0, 10, 45, 90)).trend for _ in range(20)] == ["growing"] * 20
    assert {measured_effects(chance, (60, 20, -20, -60)).trend for _ in range(20)} == {"fading"}, "and where it turns"
