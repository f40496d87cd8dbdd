"""The tables that drills and soaks print tell whether everything held."""

from __future__ import annotations

import random

from tests.drills.__main__ import DRILLS, HEAD, Row, line_of
from tests.drills.drill import Outcome
from tests.drills.growth import slope
from tests.drills.soak import State, Stretch, table

TIMES_S = [10.0 * number for number in range(100)]


def test_what_only_scatters_is_flat_and_what_leaks_grows() -> None:
    rng = random.Random(1)
    steady = [100 + rng.uniform(-1, 1) for _ in TIMES_S]
    assert slope(TIMES_S, steady).is_flat
    leaking = [value + 0.01 * time_s for time_s, value in zip(TIMES_S, steady, strict=True)]
    found = slope(TIMES_S, leaking)
    assert not found.is_flat and 30 < found.per_hour < 42
    assert slope(TIMES_S, [0.0] * 15 + steady[15:]).is_flat, "a start is no leak"
    assert slope([], []).is_flat and slope([1.0], [5.0]).is_flat


def test_each_drill_has_a_name_and_a_line_as_wide_as_the_tables_head() -> None:
    assert len({drill.name for drill in DRILLS}) == len(DRILLS)
    line = line_of(Row("a", "held", 1.0, Outcome(outcomes={"answered": 3, "cut off": 1}, silence_s=0.5)))
    assert line == "| a | held | 3 of 4 | 1 cut off | 0.5 | 0.0 | - |"
    assert line.count("|") == HEAD.splitlines()[0].count("|")


def test_a_soak_with_one_wrong_answer_has_not_held() -> None:
    stretches = [Stretch(0, 600.0, {"answered": 10}, {"gateway killed": 1}, [], [], 1.0)]
    assert table(State(1, stretches))[1]
    wrong = Stretch(0, 600.0, {"answered": 9, "WRONG": 1}, {}, ["another model's"], [], 1.0)
    text, held = table(State(1, [*stretches, wrong]))
    assert not held and "another model's" in text and "answered                                 19" in text
