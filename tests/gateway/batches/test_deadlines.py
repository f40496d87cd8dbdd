"""Batches keep their deadlines where the band's share of the capacity allows it, however busy their tenants are.

The feed of a gateway and the scheduler of an engine run in virtual time, beside interactive requests without end.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import msgspec
import pytest

from engine.scheduling.step_time import StepCosts
from gateway.batches import dispatcher
from gateway.batches.deadlines import Backlog, Pace, find_late
from gateway.batches.feed import Asker, Feed, Place, Queued, work_of
from tests.engine.scheduling.band_simulation import GPU_BAND, Machine, Sizes
from tests.figures import figure

HOUR_S, FULL_HOUR_S = 10.0, 120.0
"""The length of an hour for the machine. The engine's clock and that of the gateway run faster accordingly."""
BATCHES, FULL_BATCHES = 120, 10_000
TENANTS = ["flood"] * 4 + [f"b{number}" for number in range(6)]
USUAL_WORK = 330.0
"""The work of a batch on the average."""
MOST_FULL = 0.95
"""The part of the share that batches may need and be promised their deadlines: the last places are given by turns."""


class Batch(msgspec.Struct, eq=False):
    """A batch. is_allowed: whether the band's share is enough for its deadline."""

    tenant: str
    arrives_s: float
    due_s: float
    lines: list[tuple[int, int]]
    is_allowed: bool
    asker: Asker

    @property
    def num_open(self) -> int:
        return self.asker.num_left["tiny"]


class Pool:
    """The engine, which gives credit as its heartbeats do."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.is_asleep = False

    def take_batch_credit(self) -> bool | None:
        scheduler = self._machine.scheduler
        return not self.is_asleep and self._machine.num_batch < scheduler.num_batch_wanted


def busy_machine(hour_s: float) -> Machine:
    """Return a slow machine whose interactive requests leave batch work a quarter of the service, and nothing more."""
    band = msgspec.structs.replace(GPU_BAND, share=0.25, lengthening=0.0)
    machine = Machine(StepCosts(0.1, 1e-3, 1e-4, 0.0), band, num_blocks=500, max_num_seqs=8)
    machine.hurry = 3600 / hour_s
    return machine


def step_busily(machine: Machine, chance: random.Random) -> None:
    """Take a step while interactive requests never run out."""
    while machine.outstanding["t"] < 12:
        machine.send("t", *Sizes(20, 10).draw(chance))
    machine.step()


def rate_of_share(chance: random.Random) -> float:
    """Return the work a second that endless batch work gets."""
    machine, work = busy_machine(HOUR_S), 0.0
    while machine.now < 200:
        while machine.num_batch < 20:
            machine.send_batch("a", *Sizes(20, 6).draw(chance))
        step_busily(machine, chance)
        work += sum(work_of(f.usage.prompt_tokens, f.usage.completion_tokens) for f in finals(machine))
    return work / machine.now


def finals(machine: Machine) -> Iterator:  # type: ignore[type-arg]
    return (final for final in machine.landed.finals if not final.request_id.startswith("t/"))


def stream(num_batches: int, rate: float, hour_s: float, chance: random.Random) -> Iterator[Batch]:
    """Give batches of 2 to 50 lines, in the order of their arrival: days of too much work and days of little by turns.

    A batch is allowed if all were in time, served one after the other by their deadlines.
    """
    at_s, free_s, load, num_left = 1.0, 0.0, 0.4, 0
    day_s = 24 * hour_s
    for _ in range(num_batches):
        if not num_left:
            load = 2.5 if load < 1 else 0.4
            num_left = int(chance.uniform(1.0, 2.5) * day_s * rate / USUAL_WORK)
        num_left -= 1
        lines = [Sizes(20, 6).draw(chance) for _ in range(chance.choice((2, 5, 10, 25, 50)))]
        work_s = sum(work_of(*line) for line in lines) / rate
        free_s = max(free_s, at_s) + work_s
        tenant, due_s = chance.choice(TENANTS), at_s + day_s
        asker = Asker(tenant, due_s * 3600 / hour_s, {"tiny": len(lines)})
        yield Batch(tenant, at_s, due_s, lines, free_s <= due_s, asker)
        at_s += work_s / load * chance.choice((0.0, 0.5, 2.5))


class Gateway:
    """A gateway with as many places for batches as a real one, and one engine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._pool = Pool(machine)
        self._feed = Feed({"tiny": self._pool}, clock=lambda: machine.now * machine.hurry)
        self._queue: list[Batch] = []
        self._working: list[Batch] = []
        self._running: dict[str, tuple[Batch, Place]] = {}

    @property
    def num_open(self) -> int:
        return len(self._queue) + len(self._working)

    def add(self, batch: Batch) -> None:
        self._queue.append(batch)

    def send(self, chance: random.Random) -> None:
        """Send lines until the engine wants no more."""
        self._fill_places()
        self._feed.queued = [Queued(each.asker.ends_at_s, {"tiny": each.num_open}, None) for each in self._queue]
        asking = [batch for batch in self._working if batch.lines]
        chance.shuffle(asking)
        for self._pool.is_asleep in (True, False):  # all have asked before the credit comes
            for batch in asking:
                while batch.lines and (place := self._feed.take("tiny", batch.asker)) is not None:
                    slack_s = 0.0 if place.is_urgent else None
                    name = self._machine.send_batch(batch.tenant, *batch.lines.pop(), slack_s=slack_s)
                    self._running[name] = batch, place

    def take_results(self) -> Iterator[Batch]:
        """Take the results of a step; return the batches that are done."""
        for final in finals(self._machine):
            batch, place = self._running.pop(final.request_id)
            work = work_of(final.usage.prompt_tokens, final.usage.completion_tokens)
            batch.asker.done("tiny", work)
            self._feed.give(place, work)
            if not batch.num_open:
                self._feed.leave(batch.asker)
                (self._working if batch in self._working else self._queue).remove(batch)
                yield batch

    def _fill_places(self) -> None:
        """Give places to the batches of tenants that have the fewest; take one from a tenant that has two more."""
        at_work = Counter(batch.tenant for batch in self._working)
        while self._queue:
            first = min(self._queue, key=lambda batch: (at_work[batch.tenant], batch.due_s))
            if len(self._working) >= dispatcher.MAX_BATCHES:
                tenant, most = at_work.most_common(1)[0]
                if most <= at_work[first.tenant] + 1:
                    return
                theirs = (batch for batch in self._working if batch.tenant == tenant)
                last = max(theirs, key=lambda batch: batch.due_s)
                self._feed.leave(last.asker)
                self._working.remove(last)
                self._queue.append(last)
                at_work[tenant] -= 1
            self._queue.remove(first)
            self._working.append(first)
            at_work[first.tenant] += 1


def late_batches(num_batches: int, hour_s: float, seed: int) -> tuple[int, int, int]:
    """Return how many batches of a random stream miss 24 hours though the share allows them; how many it allows; and
    how many it does not."""
    chance = random.Random(seed)
    rate = MOST_FULL * rate_of_share(chance)
    todo = list(reversed(list(stream(num_batches, rate, hour_s, chance))))
    num_allowed = sum(batch.is_allowed for batch in todo)
    machine = busy_machine(hour_s)
    gateway, num_late = Gateway(machine), 0
    while todo or gateway.num_open:
        if not gateway.num_open:
            machine.now = max(machine.now, todo[-1].arrives_s)
        while todo and todo[-1].arrives_s <= machine.now:
            gateway.add(todo.pop())
        gateway.send(chance)
        step_busily(machine, chance)
        num_late += sum(batch.is_allowed and machine.now > batch.due_s for batch in gateway.take_results())
    return num_late, num_allowed, num_batches - num_allowed


def test_batches_are_done_within_24_hours_where_the_share_of_the_capacity_allows(full: bool) -> None:
    num_batches, hour_s = (FULL_BATCHES, FULL_HOUR_S) if full else (BATCHES, HOUR_S)
    num_late, num_allowed, num_others = late_batches(num_batches, hour_s, seed=6)
    if full:
        figure(f"{num_late} late of {num_allowed:,} batches that the share allows; {num_others:,} others")
    assert num_allowed > num_batches / 2 and num_others > num_batches / 50
    assert not num_late


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
def test_deadlines_are_in_danger_where_one_after_the_other_would_rest_for_less_than_an_hour(
    hours_left_and_needed: list[tuple[float, float]], is_urgent: bool, hopeless: list[int]
) -> None:
    work_per_s, now_s = 7.0, 50.0
    backlogs = [
        (Backlog(now_s + 3600 * left, 3600 * needed * work_per_s), number)
        for number, (left, needed) in enumerate(hours_left_and_needed)
    ]
    assert find_late(backlogs, work_per_s, now_s) == (is_urgent, hopeless)


def test_the_pace_is_that_of_the_last_minutes_and_falls_while_nothing_ends() -> None:
    pace = Pace()
    pace.begin(0.0)
    for second in range(1, 1_001):
        pace.note(3.0 if second <= 500 else 6.0, float(second))
    assert pace.work_per_s(1_000.0) == pytest.approx(6.0)
    assert pace.work_per_line == pytest.approx(6.0)
    assert pace.work_per_s(1_600.0) == pytest.approx(6.0 * 300 / 900, rel=0.01)
    pace.begin(2_000.0)
    assert pace.work_per_s(2_010.0) == float("inf"), "it is not known"


class Credit:
    """A pool that gives credit as a test does."""

    def __init__(self) -> None:
        self.left = 0

    def take_batch_credit(self) -> bool | None:
        self.left -= 1
        return self.left >= 0


@pytest.mark.parametrize(("num_lines", "is_urgent"), [(71_000, True), (60_000, False)])
def test_once_a_deadline_is_in_danger_the_earliest_goes_first_and_one_place_of_fifty_goes_by_turns(
    num_lines: int, is_urgent: bool
) -> None:
    """One line of one token ends each second; 72,000 seconds are left to the larger batch."""
    now_s, credit = 0.0, Credit()
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
    feed.leave(large)
    assert feed.is_urgent == is_urgent
    feed.leave(small)
    assert not feed.is_urgent, "nobody is left"


def test_batches_that_wait_for_a_gateway_put_deadlines_in_danger() -> None:
    now_s, credit = 0.0, Credit()
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


def test_a_pool_is_judged_by_its_own_lines() -> None:
    """Lines of another pool put no deadline in danger here, whether their batch asks or waits for a gateway."""
    now_s, credit = 0.0, Credit()
    pools = {"tiny": credit, "slow": Credit()}
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
    places = [feed.take(model, asker) for model in pools]
    assert [place.is_urgent for place in places if place is not None] == [False, True]
