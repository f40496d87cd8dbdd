"""Projects that ask a pool for work get equal amounts in virtual time, whatever size their lines have or seem to."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain.batches.turns import ASKS_S, Turns

PLACES = 4
SECOND_S = 1.0


class SimulatedPool:
    """A simulated pool with a number of places, which serves projects with endless lines; lines end at random."""

    def __init__(self, most_work: dict[str, int], chance: random.Random) -> None:
        """Begin with free places. most_work: the work of each project's longest line."""
        self.turns = Turns()
        self.got: Counter[str] = Counter()
        self.in_flight: list[tuple[str, int, float]] = []  # project, work, estimate
        self.now_s = 0.0
        self._most_work = most_work
        self._chance = chance

    def second(self, asking: list[str]) -> None:
        """Simulate one second: lines end at random, and lines of the asking projects start."""
        self.now_s += SECOND_S
        self._chance.shuffle(self.in_flight)
        while self.in_flight and (len(self.in_flight) >= PLACES or self._chance.random() < 0.5):
            project, work, estimate = self.in_flight.pop()
            self.got[project] += work
            self.turns.charge(project, work - estimate)
        for project in asking:
            self.turns.ask(project, self.now_s)
        while asking and len(self.in_flight) < PLACES:
            self._chance.shuffle(asking)
            project = next(each for each in asking if self.turns.is_turn_of(each, asking))
            estimate = self._chance.uniform(1, self._most_work[project])
            self.turns.begin(project, estimate, self.now_s)
            self.in_flight.append((project, self._chance.randint(1, self._most_work[project]), estimate))


@given(st.integers(0, 2**32), st.lists(st.integers(1, 500), min_size=2, max_size=5))
@settings(max_examples=100, deadline=None)
def test_projects_that_ask_all_the_time_get_the_same_work(seed: int, most: list[int]) -> None:
    """This holds however long each project's lines are, and however wrong the estimates of their work."""
    chance = random.Random(seed)
    most_work = {f"p{number}": each for number, each in enumerate(most)}
    pool = SimulatedPool(most_work, chance)
    bound = 2 * max(most) + 2 * PLACES * max(most)
    for _ in range(300):
        pool.second(list(most_work))
        got = [pool.got[project] for project in most_work]
        assert max(got) - min(got) <= bound, pool.got


@given(st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_a_project_that_comes_later_waits_for_nothing_and_is_owed_nothing(seed: int) -> None:
    chance = random.Random(seed)
    pool = SimulatedPool({"busy": 50, "late": 50}, chance)
    for _ in range(chance.randint(10, 200)):
        pool.second(["busy"])
    before = pool.got.copy()
    for _ in range(300):
        pool.second(["busy", "late"])
        assert abs(pool.got["busy"] - before["busy"] - pool.got["late"]) <= (2 + 4 * PLACES) * 50
    for _ in range(100):
        pool.second(["late"])
    before = pool.got.copy()
    for _ in range(300):
        pool.second(["busy", "late"])
        difference = pool.got["busy"] - before["busy"] - pool.got["late"] + before["late"]
        assert abs(difference) <= (2 + 4 * PLACES) * 50, "the other one has nothing to make up for"


def test_a_project_that_a_slow_database_keeps_from_asking_catches_up() -> None:
    turns = Turns()
    for second in range(100):
        now_s = float(second)
        turns.ask("fast", now_s)
        if not second % int(ASKS_S):
            turns.ask("slow", now_s)
        turns.begin("fast", 10.0, now_s)
    turns.ask("slow", 99.5)
    num_lines = 0
    while turns.is_turn_of("slow", ["fast"]):
        turns.begin("slow", 10.0, 99.5)
        num_lines += 1
    assert num_lines == 101


def test_work_out_of_turn_counts_until_it_is_forgotten() -> None:
    turns = Turns()
    turns.ask("a", 0.0)
    turns.ask("b", 0.0)
    turns.charge_ahead("a", 5.0)
    assert not turns.is_turn_of("a", ["b"])
    turns.forget_ahead()
    assert turns.is_turn_of("a", ["b"])


def test_tags_that_gateways_share_contain_what_each_charged_since() -> None:
    turns = Turns()
    turns.ask("a", 0.0)
    turns.begin("a", 5.0, 0.0)
    sent = turns.unshared(0.0)
    assert sent == {"a": (5.0, True)}
    turns.begin("a", 2.0, 0.0)  # while the database answers
    turns.share(sent, {"a": 105.0, "elsewhere": 106.0}, {"a", "elsewhere"})
    turns.ask("elsewhere", 0.1)
    assert not turns.is_turn_of("a", ["elsewhere"]), "107 beside 106"
    turns.ask("new", 0.1)
    assert turns.is_turn_of("new", ["a", "elsewhere"])
    assert not turns.is_turn_of("a", ["new"]) and turns.unshared(0.1)["a"] == (2.0, True)
    turns.begin("new", 1.5, 0.1)
    assert not turns.is_turn_of("new", ["elsewhere"]), "it began where the smallest one was, at 106"
