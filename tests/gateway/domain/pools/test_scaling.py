"""The number of a pool's replicas follows its load: within the bounds, up at once, down late, and without flapping."""

from __future__ import annotations

import itertools
import math

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from gateway.domain.pools.scaling import (
    BUSY,
    COOL_DOWN_S,
    GAP_S,
    LONGEST_WAIT_S,
    PEAK_S,
    STEP_S,
    Bounds,
    Load,
    Memory,
    PoolSnapshot,
    combined_load,
    decide,
)

PLACES = 8
BOUNDS = Bounds(1, 10)
ENCODED = msgspec.json


class Site:
    """A simulated pool with replicas that take some seconds to start, and a given load for each second."""

    def __init__(self, bounds: Bounds = BOUNDS, *, number: int = 1, start_s: int = 0) -> None:
        self.bounds, self.number, self.start_s = bounds, number, start_s
        self.now_s, self.why = 1000.0, ""
        self.memory: Memory | None = None
        self.started_s = [0.0] * number
        self.numbers: list[int] = []

    @property
    def num_ready(self) -> int:
        return sum(self.now_s - each >= self.start_s for each in self.started_s)

    def load(self, demand: int, kv_share: float = 0.0, idle_s: float = 0.0) -> Load:
        places = self.num_ready * PLACES
        num_running = min(demand, places)
        is_cold = not self.num_ready
        return Load(
            num_ready=self.num_ready,
            places=places,
            num_running=num_running,
            num_waiting=0 if is_cold else demand - num_running,
            num_held=demand if is_cold else 0,
            oldest_wait_s=5.0 if demand > num_running else 0.0,
            kv_share=kv_share,
            idle_s=0.0 if demand else idle_s,
        )

    def step(self, demand: int, **options: float) -> int:
        """Decide in the next second; return the number of replicas."""
        seen = PoolSnapshot(self.number, self.num_ready, self.load(demand, **options))
        if self.memory is not None:  # as it comes back from the database
            self.memory = ENCODED.decode(ENCODED.encode(self.memory), type=Memory)
        decision = decide(self.bounds, self.memory, seen, self.now_s)
        self.number, self.memory, self.why = decision.num_replicas, decision.memory, decision.why
        self.started_s = self.started_s[: self.number] + [self.now_s] * (self.number - len(self.started_s))
        self.numbers.append(self.number)
        self.now_s += 1
        return self.number

    def steps(self, demand: int, num_steps: int, **options: float) -> list[int]:
        return [self.step(demand, **options) for _ in range(num_steps)]


@settings(max_examples=60, deadline=None)
@given(
    least=st.integers(0, 3),
    more=st.integers(0, 9),
    number=st.integers(0, 20),
    demands=st.lists(st.tuples(st.integers(0, 200), st.integers(1, 120)), max_size=12),
    start_s=st.integers(0, 40),
)
def test_whatever_comes_the_number_stays_within_its_bounds_and_no_two_changes_are_opposite_within_the_cool_down(
    least: int, more: int, number: int, demands: list[tuple[int, int]], start_s: int
) -> None:
    bounds = Bounds(least, max(1, least + more), down_after_s=40)
    site = Site(bounds, number=number, start_s=start_s)
    changes: list[tuple[float, int, int]] = []
    for demand, seconds in demands:
        for _ in range(seconds):
            before = site.number
            site.step(demand)
            assert bounds.min_replicas <= site.number <= bounds.max_replicas
            if site.number != before and bounds.min_replicas <= before <= bounds.max_replicas:
                changes.append((site.now_s, before, site.number))
    for (first_s, a, b), (second_s, c, d) in itertools.pairwise(changes):
        assert (b - a) * (d - c) > 0 or second_s - first_s >= min(COOL_DOWN_S, bounds.down_after_s) or c == 0
        assert d - c >= -1 and (c or d == 1), "one goes at a time, and one comes first"


@settings(max_examples=25, deadline=None)
@given(demand=st.integers(0, 90), kv_total=st.floats(0, 8), number=st.integers(1, 10))
def test_a_constant_load_changes_the_number_at_most_in_one_direction_and_then_no_more(
    demand: int, kv_total: float, number: int
) -> None:
    site = Site(Bounds(1, 10, down_after_s=30), number=number)
    for _ in range(600):
        site.step(demand, kv_share=min(1.0, kv_total / max(site.number, 1)))
    steps = [b - a for a, b in zip([number, *site.numbers], site.numbers, strict=False) if a != b]
    assert all(each > 0 for each in steps) or all(each < 0 for each in steps)
    assert len(set(site.numbers[-250:])) == 1
    assert site.number >= min(10, math.ceil(demand / PLACES - 1e-9))


@given(demand=st.integers(1, 300), most=st.integers(1, 40))
def test_a_backlog_has_all_the_replicas_that_it_needs_at_once(demand: int, most: int) -> None:
    site = Site(Bounds(1, most))
    site.step(demand)
    assert site.number == min(most, math.ceil(demand / (PLACES * BUSY) - 1e-9))


def test_more_replicas_come_while_others_load_but_none_before_the_first_is_ready() -> None:
    site = Site(start_s=20)
    assert site.steps(10, 5) == [2] * 5
    assert "1 replica is about to be ready" in site.why
    assert site.step(30) == 5 and site.step(100) == 10
    site = Site(Bounds(0, 10), number=0, start_s=20)
    assert site.steps(100, 20) == [1] * 20 and "1 replica is about to be ready" in site.why
    assert site.steps(100, 2)[-1] == 10


def test_requests_that_wait_long_bring_one_more_though_places_are_free() -> None:
    waits = Load(num_ready=2, places=16, num_running=4, num_waiting=3, oldest_wait_s=LONGEST_WAIT_S, idle_s=0.0)
    soon = msgspec.structs.replace(waits, oldest_wait_s=LONGEST_WAIT_S / 2)
    assert decide(BOUNDS, None, PoolSnapshot(2, 2, waits), 0.0).num_replicas == 3
    assert decide(BOUNDS, None, PoolSnapshot(2, 2, soon), 0.0).num_replicas == 2
    assert decide(BOUNDS, None, PoolSnapshot(2, 1, waits), 0.0).num_replicas == 2, "one is about to be ready"


def test_a_full_kv_cache_brings_more_though_no_request_waits() -> None:
    load = Load(num_ready=2, places=16, num_running=4, kv_share=0.95, idle_s=0.0)
    decision = decide(BOUNDS, None, PoolSnapshot(2, 2, load), 0.0)
    assert decision.num_replicas == 3 and "95% of the KV cache" in decision.why


def test_a_replica_goes_after_a_whole_window_in_which_it_was_not_needed_and_the_next_one_later() -> None:
    site = Site(Bounds(1, 10, down_after_s=60), number=4)
    site.steps(30, 100)
    assert set(site.numbers) == {5}, "30 requests ask for more than 4"
    assert set(site.steps(10, 59)) == {5}
    assert "would do, and one goes" in site.why or "needed" in site.why
    numbers = site.steps(10, int(PEAK_S + 4 * STEP_S) + 2)
    assert numbers[-1] == 3, "10 requests fill two thirds of two replicas"
    falls = [place for place, (a, b) in enumerate(itertools.pairwise(numbers)) if a != b]
    assert falls[1] - falls[0] >= STEP_S


def test_no_replica_comes_in_the_moments_after_one_went() -> None:
    site = Site(Bounds(1, 4, down_after_s=60), number=2)
    while site.number == 2:
        site.step(1)
    assert set(site.steps(30, int(COOL_DOWN_S) - 1)) == {1} and "none comes yet" in site.why
    assert site.steps(30, 2)[-1] == 4


def test_no_replica_goes_while_a_request_waits() -> None:
    memory = None
    for second in range(200):
        load = Load(num_ready=3, places=24, num_running=1, num_waiting=1, idle_s=0.0)
        decision = decide(Bounds(1, 4, down_after_s=60), memory, PoolSnapshot(3, 3, load), float(second))
        memory = decision.memory
        assert decision.num_replicas == 3


def test_one_busy_second_in_the_window_keeps_all_replicas() -> None:
    site = Site(Bounds(1, 10, down_after_s=60), number=4)
    for _ in range(6):
        site.steps(1, 40)
        site.step(25)
    assert set(site.numbers) == {4}


def test_a_pool_that_needed_a_removed_replica_again_waits_longer_before_the_next_removal() -> None:
    site = Site(Bounds(1, 2, down_after_s=40), number=1)
    falls: list[float] = []
    for _ in range(400):
        before = site.number
        # One replica has places left and yet lets requests wait, by a bound that no figure shows.
        late = Load(num_ready=1, places=PLACES, num_running=3, num_waiting=1, oldest_wait_s=9.0, idle_s=0.0)
        calm = Load(num_ready=2, places=2 * PLACES, num_running=4, idle_s=0.0)
        decision = decide(
            site.bounds,
            site.memory,
            PoolSnapshot(site.number, site.number, late if site.number == 1 else calm),
            site.now_s,
        )
        site.number, site.memory = decision.num_replicas, decision.memory
        if site.number < before:
            falls.append(site.now_s)
        site.now_s += 1
    pauses = [b - a for a, b in itertools.pairwise(falls)]
    assert len(pauses) >= 2 and all(b > 1.5 * a for a, b in itertools.pairwise(pauses))


def test_a_pool_without_replicas_gets_one_for_however_many_requests_and_says_how_long_that_took() -> None:
    site = Site(Bounds(0, 4, down_after_s=60), number=0, start_s=7)
    assert site.steps(0, 5) == [0] * 5
    assert site.step(1000) == 1 and "1000 requests wait for a first replica" in site.why
    site.steps(3, 10)
    assert site.memory is not None and site.memory.start_s == pytest.approx(7, abs=1.1)


def test_the_last_replica_goes_only_when_no_request_came_for_the_window() -> None:
    site = Site(Bounds(0, 4, down_after_s=60), number=1)
    for _ in range(20):  # short requests, seldom seen while they run
        site.steps(0, 9, idle_s=5.0)
    assert set(site.numbers) == {1}
    numbers = site.steps(0, 90, idle_s=60.0)
    assert numbers[-1] == 0 and numbers.index(0) >= 60 - 1


def test_a_change_of_revision_lets_no_replica_go() -> None:
    memory, now_s = None, 0.0
    for _ in range(500):
        seen = PoolSnapshot(3, 3, Load(num_ready=3, places=24, idle_s=100.0), is_changing=True)
        decision = decide(BOUNDS, memory, seen, now_s)
        memory, now_s = decision.memory, now_s + 1
        assert decision.num_replicas == 3


def test_without_figures_nothing_changes_and_old_figures_are_forgotten() -> None:
    site = Site(Bounds(1, 10, down_after_s=60), number=3)
    site.steps(1, 50)
    assert decide(site.bounds, site.memory, PoolSnapshot(3, 3, None), site.now_s + 1e6).num_replicas == 3
    site.now_s += GAP_S + 1
    assert set(site.steps(1, 55)) == {3}, "the window begins anew"


def test_loads_of_gateways_are_combined_without_counting_engines_twice() -> None:
    one = Load(num_ready=2, places=16, num_running=9, num_waiting=1, num_own=3, num_held=5, idle_s=3.0)
    other = Load(num_ready=1, places=8, num_running=10, num_own=4, num_held=6, idle_s=50.0, oldest_wait_s=4.0)
    both = combined_load([one, other])
    assert both == Load(2, 16, 10, 1, 7, 0.0, 4.0, 11, 3.0)
    assert combined_load([]) is None
