"""Batches keep their deadlines where the capacity allows it, however busy their tenants are.

The feed of a gateway runs in virtual time, with the scheduler of an engine beside interactive requests without end, and
for many batches with servers that do as much work.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from gateway.batches.deadlines import Backlog, Pace, find_late
from gateway.batches.feed import Asker, Feed, Place, Queued
from tests.figures import figure
from tests.gateway.batches.deadline_simulation import (
    BusyEngine,
    Servers,
    allow_by_servers,
    missed_batches,
    rate_of_share,
    stream,
)

BATCHES = 120
MANY_BATCHES, HOUR_S = 300, 20.0
FULL_BATCHES, FULL_HOUR_S = 10_000, 120.0
"""The number of batches, and how long an hour lasts for the servers: the longer, the more batches wait."""

MOST_FULL = 0.95
"""The share of the capacity up to which batches are promised their deadlines: the last places go by turns."""


def test_batches_are_done_within_24_hours_where_the_share_of_an_engine_allows() -> None:
    chance = random.Random(6)
    batches = list(stream(BATCHES, MOST_FULL * rate_of_share(chance), BusyEngine.hour_s, chance))
    num_allowed = sum(batch.is_allowed for batch in batches)
    assert num_allowed > BATCHES / 2 and BATCHES - num_allowed > BATCHES / 50
    missed = missed_batches(batches, BusyEngine(), chance)
    assert not any(batch.is_allowed for batch in missed)


@pytest.mark.parametrize(("seed", "drift"), [(6, 0.0), (1, 0.3)])
def test_many_batches_are_done_within_24_hours_where_the_capacity_allows(seed: int, drift: float, full: bool) -> None:
    """The capacity of an hour differs from the mean by up to 30 %, which no gateway knows in advance."""
    num_batches, hour_s = (FULL_BATCHES, FULL_HOUR_S) if full else (MANY_BATCHES, HOUR_S)
    chance = random.Random(seed)
    servers = Servers(hour_s, drift, random.Random(seed))
    batches = list(stream(num_batches, MOST_FULL * servers.rate, hour_s, chance))
    allow_by_servers(batches, servers, MOST_FULL)
    num_allowed = sum(batch.is_allowed for batch in batches)
    num_missed = sum(batch.is_allowed for batch in missed_batches(batches, servers, chance))
    if full:
        others = f"{num_batches - num_allowed:,} others"
        figure(f"{num_missed} late of {num_allowed:,} batches that there is time for, drift {drift:.0%}; {others}")
    assert num_allowed > num_batches / 2 and num_batches - num_allowed > num_batches / 50
    assert not num_missed


@pytest.mark.parametrize(
    ("hours_left_and_needed", "is_urgent", "hopeless"),
    [
        ([(24, 10), (20, 10)], False, []),
        ([(24, 10), (20, 13.5)], True, []),  # the later one has half an hour to rest
        ([(4, 3.5), (24, 1)], True, []),
        ([(0.9, 0), (24, 1)], True, []),
        ([(10, 13), (12, 1)], True, []),  # late by less than the pace may err
        ([(10, 17), (12, 1)], False, [0]),  # the hopeless one keeps nobody waiting
    ],
)
def test_deadlines_are_in_danger_if_batches_run_one_after_another_leave_less_than_an_hour(
    hours_left_and_needed: list[tuple[float, float]], is_urgent: bool, hopeless: list[int]
) -> None:
    work_per_s, now_s = 7.0, 50.0
    backlogs = [
        (Backlog(now_s + 3600 * left, 3600 * needed * work_per_s), number)
        for number, (left, needed) in enumerate(hours_left_and_needed)
    ]
    assert find_late(backlogs, work_per_s, now_s) == (is_urgent, hopeless)


def test_the_pace_is_that_of_the_last_minutes_and_falls_while_no_line_ends() -> None:
    pace = Pace()
    pace.begin(0.0)
    for second in range(1, 1_001):
        pace.note(3.0 if second <= 500 else 6.0, float(second))
    assert pace.work_per_s(1_000.0) == pytest.approx(6.0)
    assert pace.work_per_line == pytest.approx(6.0)
    assert pace.work_per_s(1_600.0) == pytest.approx(6.0 * 300 / 900, rel=0.01)
    pace.begin(2_000.0)
    assert pace.work_per_s(2_010.0) == float("inf"), "it is not known"


class FakePool:
    """A fake pool whose credit a test sets."""

    def __init__(self) -> None:
        self.left = 0

    def take_batch_credit(self) -> bool | None:
        self.left -= 1
        return self.left >= 0


@pytest.mark.parametrize(("num_lines", "is_urgent"), [(71_000, True), (60_000, False)])
def test_in_danger_the_earliest_deadline_goes_first_and_every_fiftieth_place_goes_by_turns(
    num_lines: int, is_urgent: bool
) -> None:
    """One line of one token ends each second; 72,000 seconds are left to the larger batch."""
    now_s, credit = 0.0, FakePool()
    feed = Feed({"tiny": credit}, clock=lambda: now_s)
    large, small = Asker("large", 72_000.0, {"tiny": num_lines}), Asker("small", 86_400.0, {"": 5_000})
    given: list[Place] = []
    for second in range(600):
        now_s = float(second)
        credit.left = 0
        assert feed.take("tiny", large) is None and feed.take("tiny", small) is None, "both wait"
        credit.left = 1
        places = [feed.take("tiny", asker) for asker in (small, large, small)]
        (place,) = [each for each in places if each is not None]
        given.append(place)
        (large if place.project_id == "large" else small).done("tiny", 1.0)
        feed.give(place, 1.0)
    last = Counter(place.project_id for place in given[-200:])
    assert feed.is_urgent == is_urgent
    assert last["small"] == 4 if is_urgent else last["small"] > 90, last
    assert all(place.is_urgent == is_urgent for place in given[-200:])
    assert not feed.hopeless
    feed.leave(large)
    assert feed.is_urgent == is_urgent
    feed.leave(small)
    assert not feed.is_urgent, "nobody is left"


def test_batches_that_wait_for_a_gateway_put_deadlines_in_danger() -> None:
    now_s, credit = 0.0, FakePool()
    feed = Feed({"tiny": credit}, clock=lambda: now_s)
    asker = Asker("a", 86_400.0, {"tiny": 10_000})
    for second in range(60):
        now_s, credit.left = float(second), 1
        place = feed.take("tiny", asker)
        assert place is not None and not place.is_urgent
        feed.give(place, 1.0)
    feed.queued = [Queued(86_400.0, {"tiny": 25_000, "": 50_000}, None)]
    now_s, credit.left = 90.0, 1
    assert feed.take("tiny", asker) is not None and feed.is_urgent
    feed.queued = [Queued(86_400.0, {"tiny": 7_500, "other": 80_000}, None)]
    now_s = 120.0
    feed.take("tiny", asker)
    assert not feed.is_urgent


def test_uncounted_lines_do_not_reduce_the_backlog_of_counted_lines() -> None:
    """A batch ends more lines for removed models than were counted when it began."""
    asker = Asker("a", 86_400.0, {"tiny": 10, "": 1})
    for _ in range(5):
        asker.done("gone", 1.0)
    assert asker.backlog("tiny", 2.0).work == 20.0


def test_a_pool_is_judged_by_its_own_lines() -> None:
    """Lines of one pool do not make the lines of another pool urgent, whether their batch runs or waits for a
    gateway."""
    now_s, credit = 0.0, FakePool()
    pools = {"tiny": credit, "slow": FakePool()}
    feed = Feed(pools, clock=lambda: now_s)
    asker = Asker("a", 86_400.0, {"tiny": 10_000, "slow": 100_000})
    feed.queued = [Queued(86_400.0, {"slow": 90_000}, None)]
    for second in range(60):
        now_s = float(second)
        credit.left = pools["slow"].left = 1
        for model in pools:
            place = feed.take(f"{model}:adapter", asker)
            assert place is not None and (not place.is_urgent or place.pool == "slow")
            asker.done(model, 1.0)
            feed.give(place, 1.0)
    credit.left = pools["slow"].left = 1
    assert not feed.hopeless, "it has hopes here"
    places = [feed.take(model, asker) for model in pools]
    assert [place.is_urgent for place in places if place is not None] == [False, True]


def test_a_batch_is_hopeless_if_it_is_too_late_in_every_pool() -> None:
    now_s, pools = 0.0, {"tiny": FakePool(), "slow": FakePool()}
    feed = Feed(pools, clock=lambda: now_s)
    late = Asker("a", 86_400.0, {"tiny": 500_000, "slow": 500_000}, "late")
    early = Asker("a", 86_400.0, {"tiny": 100}, "early")
    for second in range(30):
        now_s = float(second)
        for model, asker in (("tiny", late), ("tiny", early), ("slow", late)):
            pools[model].left = 1
            if place := feed.take(model, asker):
                asker.done(model, 1.0)
                feed.give(place, 1.0)
    assert feed.hopeless == {"late"}
    feed.leave(late)
    assert not feed.hopeless
