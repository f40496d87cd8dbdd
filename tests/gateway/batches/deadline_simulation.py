"""A gateway with its feed in virtual time, over an engine or over servers of a given capacity."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Protocol

import msgspec

from engine.scheduling.step_time import StepCosts
from gateway.batches import dispatcher
from gateway.batches.feed import Asker, Feed, Place, Queued, work_of
from tests.engine.scheduling.band_simulation import GPU_BAND, Machine, Sizes

TENANTS = ["flood"] * 4 + [f"b{number}" for number in range(6)]
USUAL_WORK = 330.0
"""The mean work of a batch."""

SIZES = Sizes(20, 6)
DAY = 24


class Batch(msgspec.Struct, eq=False):
    """A simulated batch."""

    tenant: str
    arrives_s: float
    due_s: float
    lines: list[tuple[int, int]]
    work: float
    is_allowed: bool
    """True if the capacity is enough for its deadline."""
    asker: Asker

    @property
    def num_open(self) -> int:
        return self.asker.num_left["tiny"]


class Computer(Protocol):
    """The interface of an engine or of servers that compute lines in virtual time.

    hour_s: the length of a gateway's hour in seconds of the computer's clock.
    """

    hour_s: float

    @property
    def now_s(self) -> float: ...

    @property
    def wants_lines(self) -> bool: ...

    def send(self, tenant: str, line: tuple[int, int], slack_s: float | None) -> str:
        """Start a line; return its name."""

    def step(self, until_s: float) -> None:
        """Advance the clock by a step; an idle computer skips ahead to an instant."""

    def ended(self) -> Iterator[tuple[str, float]]:
        """Return the name and the work of each line that ended in the last step."""

    def abort(self, name: str) -> None:
        """Abort a line without a result."""


class BusyEngine:
    """A slow engine whose interactive requests leave exactly a quarter of its service for batch work."""

    hour_s = 10.0

    def __init__(self, chance: random.Random | None = None) -> None:
        self._chance = chance or random.Random(0)
        band = msgspec.structs.replace(GPU_BAND, share=0.25, lengthening=0.0)
        self._machine = Machine(StepCosts(0.1, 1e-3, 1e-4, 0.0), band, num_blocks=500, max_num_seqs=8)
        self._machine.hurry = 3600 / self.hour_s

    @property
    def now_s(self) -> float:
        return self._machine.now

    @property
    def num_held(self) -> int:
        return self._machine.num_batch

    @property
    def wants_lines(self) -> bool:
        return self.num_held < self._machine.scheduler.num_batch_wanted

    def send(self, tenant: str, line: tuple[int, int], slack_s: float | None = None) -> str:
        return self._machine.send_batch(tenant, *line, slack_s=slack_s)

    def step(self, until_s: float = 0.0) -> None:
        while self._machine.outstanding["t"] < 12:
            self._machine.send("t", *Sizes(20, 10).draw(self._chance))
        self._machine.step()

    def ended(self) -> Iterator[tuple[str, float]]:
        for final in self._machine.landed.finals:
            if not final.request_id.startswith("t/"):
                yield final.request_id, work_of(final.usage.prompt_tokens, final.usage.completion_tokens)

    def abort(self, name: str) -> None:
        self._machine.scheduler.abort(name, None)


def rate_of_share(chance: random.Random) -> float:
    """Return the work per second that a busy engine does for batches that always have lines."""
    engine, work = BusyEngine(chance), 0.0
    while engine.now_s < 200:
        while engine.num_held < 20:
            engine.send("a", SIZES.draw(chance))
        engine.step()
        work += sum(each for _, each in engine.ended())
    return work / engine.now_s


class Servers:
    """A computer of lines with a number of places, whose rate may change each hour."""

    NUM_ROWS = 8
    WANTED = 10
    rate = 20.0
    """The mean work per second."""

    def __init__(self, hour_s: float, drift: float, chance: random.Random) -> None:
        """Begin with no work. drift: the largest deviation of an hour's rate, as a part of the mean rate."""
        self.hour_s = hour_s
        self.now_s = 0.0
        self._drift = drift
        self._chance = chance
        self._rates: list[float] = []
        self._done = [0.0]  # the work that could be done until each hour
        self._waiting: dict[str, float] = {}
        self._running: dict[str, list[float]] = {}  # the work that is left, and all
        self._ended: list[tuple[str, float]] = []
        self._num_sent = 0

    def could_do(self, until_s: float) -> float:
        """Return the work that can be done until an instant."""
        hour = int(until_s / self.hour_s)
        rate = self._rate_of(hour)
        return self._done[hour] + (until_s - hour * self.hour_s) * rate

    @property
    def wants_lines(self) -> bool:
        return len(self._waiting) + len(self._running) < self.WANTED

    def send(self, tenant: str, line: tuple[int, int], slack_s: float | None) -> str:
        self._num_sent += 1
        name = f"{tenant}/{self._num_sent}"
        self._waiting[name] = work_of(*line)
        return name

    def step(self, until_s: float) -> None:
        self._ended.clear()
        while self._waiting and len(self._running) < self.NUM_ROWS:
            name = next(iter(self._waiting))
            work = self._waiting.pop(name)
            self._running[name] = [work, work]
        if not self._running:
            self.now_s = max(self.now_s, until_s)
            return
        hour = int(self.now_s / self.hour_s)
        rate = self._rate_of(hour) / len(self._running)
        seconds = min(
            min(left for left, _ in self._running.values()) / rate, (hour + 1) * self.hour_s - self.now_s + 1e-9
        )
        self.now_s += seconds
        for name, each in list(self._running.items()):
            each[0] -= rate * seconds
            if each[0] < 1e-6:
                self._ended.append((name, self._running.pop(name)[1]))

    def ended(self) -> Iterator[tuple[str, float]]:
        return iter(self._ended)

    def abort(self, name: str) -> None:
        self._waiting.pop(name, None)
        self._running.pop(name, None)

    def _rate_of(self, hour: int) -> float:
        while len(self._rates) <= hour:
            self._rates.append(self.rate * (1 + self._chance.uniform(-self._drift, self._drift)))
            self._done.append(self._done[-1] + self._rates[-1] * self.hour_s)
        return self._rates[hour]


def stream(num_batches: int, rate: float, hour_s: float, chance: random.Random) -> Iterator[Batch]:
    """Yield batches of 2 to 50 lines in the order of their arrival, with days of too much work and days of little.

    A batch is allowed if it would end by its deadline when batches are served one after another in this order.

    rate: the work per second that can be done for batches.
    """
    at_s, free_s, load, num_left = 1.0, 0.0, 0.4, 0
    day_s = DAY * hour_s
    for _ in range(num_batches):
        if not num_left:
            load = 2.5 if load < 1 else 0.4
            num_left = int(chance.uniform(1.0, 2.5) * day_s * rate / USUAL_WORK)
        num_left -= 1
        lines = [SIZES.draw(chance) for _ in range(chance.choice((2, 5, 10, 25, 50)))]
        work = sum(work_of(*line) for line in lines)
        free_s = max(free_s, at_s) + work / rate
        tenant, due_s = chance.choice(TENANTS), at_s + day_s
        asker = Asker(tenant, due_s * 3600 / hour_s, {"tiny": len(lines)})
        yield Batch(tenant, at_s, due_s, lines, work, free_s <= due_s, asker)
        at_s += work / rate / load * chance.choice((0.0, 0.5, 2.5))


def allow_by_servers(batches: Iterable[Batch], servers: Servers, most_full: float) -> None:
    """Set `is_allowed` of each batch: whether the servers can complete it by its deadline, one after another.

    most_full: the part of the servers' work that may be promised to batches.
    """
    free = 0.0
    for batch in batches:
        free = max(free, servers.could_do(batch.arrives_s)) + batch.work / most_full
        batch.is_allowed = free <= servers.could_do(batch.due_s)


class Pool:
    """The gateway's view of a computer: a pool that, unless asleep, gives credit while the computer wants lines."""

    def __init__(self, computer: Computer) -> None:
        self._computer = computer
        self.is_asleep = False

    def take_batch_credit(self) -> bool | None:
        return not self.is_asleep and self._computer.wants_lines


class Gateway:
    """The feed of a gateway over one computer, with a real gateway's number of places for batches."""

    def __init__(self, computer: Computer) -> None:
        self._computer = computer
        self._pool = Pool(computer)
        self._feed = Feed({"tiny": self._pool}, clock=self._now_s)
        self._queue: list[Batch] = []
        self._working: list[Batch] = []
        self._running: dict[str, tuple[Batch, Place]] = {}
        self._queued_s = float("-inf")

    def _now_s(self) -> float:
        return self._computer.now_s * 3600 / self._computer.hour_s

    @property
    def num_open(self) -> int:
        return len(self._queue) + len(self._working)

    def add(self, batch: Batch) -> None:
        self._queue.append(batch)

    def expire(self) -> list[Batch]:
        """End batches whose deadline has passed; return them."""
        expired = [batch for batch in (*self._queue, *self._working) if batch.due_s <= self._computer.now_s]
        for batch in expired:
            self._remove(batch)
            for name, (each, place) in list(self._running.items()):
                if each is batch:
                    del self._running[name]
                    self._computer.abort(name)
                    self._feed.give(place)
        return expired

    def send(self, chance: random.Random) -> None:
        """Send lines until the computer wants no more."""
        self._fill_places()
        if self._now_s() - self._queued_s >= dispatcher.QUEUE_S:
            self._queued_s = self._now_s()
            self._feed.queued = [Queued(each.asker.ends_at_s, {"tiny": each.num_open}, None) for each in self._queue]
        asking = [batch for batch in self._working if batch.lines]
        chance.shuffle(asking)
        for self._pool.is_asleep in (True, False):  # all have asked before the credit comes
            for batch in asking:
                while batch.lines and (place := self._feed.take("tiny", batch.asker)) is not None:
                    name = self._computer.send(batch.tenant, batch.lines.pop(), 0.0 if place.is_urgent else None)
                    self._running[name] = batch, place

    def take_results(self) -> None:
        """Count the lines that the computer's last step has ended, and end batches that are done."""
        for name, work in self._computer.ended():
            if name not in self._running:  # it was aborted
                continue
            batch, place = self._running.pop(name)
            batch.asker.done("tiny", work)
            self._feed.give(place, work)
            if not batch.num_open:
                self._remove(batch)

    def _remove(self, batch: Batch) -> None:
        self._feed.leave(batch.asker)
        (self._working if batch in self._working else self._queue).remove(batch)

    def _fill_places(self) -> None:
        """Give places first to batches of the tenants with the fewest places.

        If no place is free, take one from the tenant with the most places, if that tenant has at least two more.
        """
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


def missed_batches(batches: Iterable[Batch], computer: Computer, chance: random.Random) -> list[Batch]:
    """Run batches to their ends, and return those that expire."""
    todo = list(reversed(list(batches)))
    gateway = Gateway(computer)
    missed: list[Batch] = []
    while todo or gateway.num_open:
        while todo and todo[-1].arrives_s <= computer.now_s:
            gateway.add(todo.pop())
        missed += gateway.expire()
        gateway.send(chance)
        computer.step(todo[-1].arrives_s if todo else 0.0)
        gateway.take_results()
    return missed
