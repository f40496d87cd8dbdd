"""Decides which batch may run its next line: each heartbeat of an engine gives credit, and a line takes one.

Projects whose lines wait for the same pool get its credit in turns by the work that each got there
(`gateway.domain.batches.turns`), however many batches it has, on whatever gateway: gateways share what they charged.
Once a deadline is in danger (`gateway.batches.deadlines`), the batch with the earliest one goes first, and every
TURN_EVERY-th place alone goes by turns.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from gateway.batches.deadlines import Backlog, Pace, find_late
from gateway.db.batches.turns import ChargedWork, Tag
from gateway.domain.batches.turns import Turns

FOREIGN_AT_ONCE = 4
"""The most lines that run at once at a pool whose servers give no credit."""

WAITS_S = 5.0
"""Seconds for which a batch counts as waiting, from its last line that got no place. A slow database may keep it
from asking again for a while, in which those that are due later must not take its place."""

HOLDS_S = 0.25
"""Seconds for which a line that got no place holds back lines of projects that got more.

Batches ask again sooner than that. Engines do not wait longer for a batch that a slow database keeps from asking; it
gets its part later.
"""

TURN_EVERY = 50
"""While deadlines go first, one of this many places goes by turns, so that no project's batches stand still."""

JUDGE_S = 10.0
"""Seconds between two checks whether batches are in danger of missing their deadlines."""


def base_of(model: str) -> str:
    """Return the base model that the model of a line names."""
    return model.partition(":")[0]


def work_of(input_tokens: int, output_tokens: int) -> float:
    """Return the work of a line in tokens, a completion's counted twice."""
    return input_tokens + 2.0 * output_tokens


class CreditedPool(Protocol):
    """The pool's part that the feed uses: the credit for lines of batches."""

    def take_batch_credit(self) -> bool | None:
        """Take credit for one line; False where there is none now, None where the pool's servers know no credit."""


ANY = ""
"""The name under which lines that name no base model are counted: routes and aliases, which may run at any pool."""


class Asker(msgspec.Struct, eq=False):
    """A batch that asks for places, updated while its lines run."""

    project_id: str
    ends_at_s: float
    """The time at which the batch expires, by the clock of the feed."""
    num_left: dict[str, int]
    """The number of lines that are left, by base model, or ANY."""
    batch_id: str = ""
    """The id by which `Feed.hopeless` names the batch."""
    num_done: dict[str, int] = {}
    """The number of lines that have ended, by base model, or ANY."""
    work_done: dict[str, float] = {}
    """The work of the lines that have ended, by base model, or ANY."""

    def done(self, model: str, work: float) -> None:
        """Record the end of a line of a model.

        work: the work that the line turned out to be.
        """
        name = self._name_of(base_of(model))
        self.num_left[name] = max(0, self.num_left.get(name, 0) - 1)
        self.num_done[name] = self.num_done.get(name, 0) + 1
        self.work_done[name] = self.work_done.get(name, 0.0) + work

    def work_per_line(self, base: str, usual_work: float) -> float:
        """Return the work of a line of a base model.

        usual_work: the work of a line, used until a line of this batch and base model is done.
        """
        name = self._name_of(base)
        num_done = self.num_done.get(name)
        return self.work_done[name] / num_done if num_done else usual_work

    def backlog(self, base: str, usual_work: float) -> Backlog:
        """Return the work of this batch that is left at the pool of a base model.

        usual_work: the work of a line, used until a line of this batch and base model is done.
        """
        work = sum(self.num_left.get(name, 0) * self.work_per_line(name, usual_work) for name in (base, ANY))
        return Backlog(self.ends_at_s, work)

    def _name_of(self, base: str) -> str:
        return base if base in self.num_left else ANY


class Place(NamedTuple):
    """The place that a line has taken at a pool."""

    pool: str
    project_id: str
    is_foreign: bool
    """True if the pool's servers are of another maker."""
    is_urgent: bool
    """True if deadlines are in danger at the pool.

    A line that got its place by turns is urgent then as well. With a smaller weight in the engine it would hold up the
    lines that its project sends next.
    """
    charged: float
    """The work that the line was estimated to have; 0 where it went by its deadline, not by turns."""


class Queued(NamedTuple):
    """A batch that waits for a gateway."""

    ends_at_s: float
    """The time at which the batch expires, by the clock of the feed."""
    num_left: Mapping[str, float]
    """The number of lines that are left, by base model, or ANY."""
    work_per_line: float | None
    """The mean work of a line; None where no line has run."""

    def backlog(self, base: str, usual_work: float) -> Backlog:
        """Return the work that is left at the pool of a base model.

        usual_work: used if no line of this batch has run.
        """
        num_left = self.num_left.get(base, 0) + self.num_left.get(ANY, 0)
        return Backlog(self.ends_at_s, num_left * (self.work_per_line or usual_work))


class _Pool:
    """The batches that ask for places at one pool, and those that have some."""

    def __init__(self, name: str) -> None:
        """Begin without batches. name: the name of the base model."""
        self._name = name
        self.num_foreign = 0
        self.turns = Turns()
        self.asked: set[Asker] = set()
        self.waiting: dict[Asker, float] = {}  # when each got no place
        self.pace = Pace()
        self.judged_s = float("-inf")
        self.is_urgent = False
        self.hopeless: set[Asker] = set()
        self.num_urgent = 0  # places in a row that went by deadlines

    def holding(self, now_s: float) -> Iterator[str]:
        """Yield the projects with a batch that got no place in the last HOLDS_S seconds."""
        return (asker.project_id for asker, last_s in self.waiting.items() if now_s - last_s <= HOLDS_S)

    def forget(self, now_s: float) -> None:
        """Forget batches that have not asked for WAITS_S seconds."""
        for asker in [each for each, last_s in self.waiting.items() if now_s - last_s > WAITS_S]:
            del self.waiting[asker]

    def judge(self, queued: Sequence[Queued], now_s: float) -> None:
        """Determine whether deadlines are in danger at this pool, by the lines that may run here."""
        self.judged_s = now_s
        work_per_s, usual = self.pace.work_per_s(now_s), self.pace.work_per_line
        backlogs = [
            *((asker.backlog(self._name, usual), asker) for asker in self.asked),
            *((each.backlog(self._name, usual), None) for each in queued),
        ]
        mine = (each for each in backlogs if each[0].work > 0)
        self.is_urgent, hopeless = find_late(mine, work_per_s, now_s)
        if not self.is_urgent:
            self.turns.forget_ahead()
        self.hopeless = {asker for asker in hopeless if asker is not None}


class Feed:
    """The credit of all pools. A gateway process has one."""

    def __init__(self, pools: Mapping[str, CreditedPool], clock: Callable[[], float] = time.monotonic) -> None:
        self._credited = pools
        self._clock = clock
        self._pools: dict[str, _Pool] = {}
        self.queued: Sequence[Queued] = ()
        """Batches that wait for a gateway, which may put deadlines in danger."""

    @property
    def hopeless(self) -> set[str]:
        """The ids of the batches that are too late at every pool where they ask for places."""
        hopeless = {asker.batch_id for pool in self._pools.values() for asker in pool.hopeless}
        return hopeless - {asker.batch_id for pool in self._pools.values() for asker in pool.asked - pool.hopeless}

    @property
    def is_urgent(self) -> bool:
        """Tell whether deadlines are in danger at any pool."""
        return any(pool.is_urgent for pool in self._pools.values())

    def take(self, model: str, asker: Asker, *, may_begin: bool = True) -> Place | None:
        """Take a place for a line of a model; return None where there is none now. The place is returned to `give`.

        may_begin: False: this gateway can begin no line now, so that the batch waits for a place.
        """
        name, now_s = base_of(model), self._clock()
        for each in [name] if name in self._credited else list(self._credited):
            pool = self._pool(each)
            if not pool.asked:
                pool.pace.begin(now_s)
            pool.asked.add(asker)
            pool.turns.ask(asker.project_id, now_s)
            pool.forget(now_s)
            if now_s - pool.judged_s >= JUDGE_S:
                pool.judge(self.queued, now_s)
            by_deadline = pool.is_urgent and pool.num_urgent < TURN_EVERY - 1
            others = pool.holding(now_s)
            if _is_first(asker, pool) if by_deadline else pool.turns.is_turn_of(asker.project_id, others):
                credit = may_begin and self._credited[each].take_batch_credit()
                is_foreign = credit is None and pool.num_foreign < FOREIGN_AT_ONCE
                if credit or is_foreign:
                    pool.num_foreign += is_foreign
                    work = asker.work_per_line(name, pool.pace.work_per_line) or pool.pace.work_per_line
                    if by_deadline:
                        pool.turns.charge_ahead(asker.project_id, work)
                    else:
                        pool.turns.begin(asker.project_id, work, now_s)
                    pool.num_urgent = pool.num_urgent + 1 if by_deadline else 0
                    pool.waiting.pop(asker, None)
                    return Place(
                        each, asker.project_id, is_foreign, pool.is_urgent, charged=0.0 if by_deadline else work
                    )
            pool.waiting[asker] = now_s
        return None

    def give(self, place: Place, work: float | None = None) -> None:
        """Give a place back after a line. work: the tokens that the line took; None if the line did not end."""
        pool = self._pools[place.pool]
        pool.num_foreign -= place.is_foreign
        if place.charged and work != 0:  # a line that was refused took the credit of another
            pool.turns.charge(place.project_id, (work or 0.0) - place.charged)
        if work:
            pool.pace.note(work, self._clock())

    def leave(self, asker: Asker) -> None:
        """Record that a batch begins no more lines, so that it does not count as waiting."""
        for pool in self._pools.values():
            pool.asked.discard(asker)
            pool.waiting.pop(asker, None)
            pool.hopeless.discard(asker)
            pool.is_urgent = pool.is_urgent and bool(pool.asked)
            if all(other.project_id != asker.project_id for other in pool.asked):
                pool.turns.leave(asker.project_id)

    def _pool(self, name: str) -> _Pool:
        if name not in self._pools:
            self._pools[name] = _Pool(name)
        return self._pools[name]

    def charged(self) -> list[ChargedWork]:
        """Return the work that was charged to projects here and has not been shared with other gateways."""
        now_s = self._clock()
        return [
            ChargedWork(name, project_id, work, asks)
            for name, pool in self._pools.items()
            for project_id, (work, asks) in pool.turns.unshared(now_s).items()
        ]

    def share(self, charged: Sequence[ChargedWork], tags: Iterable[Tag]) -> None:
        """Replace the projects' charges by those that all gateways share.

        charged: the result of `charged` that the shared charges contain.
        """
        sent: defaultdict[str, dict[str, tuple[float, bool]]] = defaultdict(dict)
        found: defaultdict[str, list[Tag]] = defaultdict(list)
        for each in charged:
            sent[each.pool][each.project_id] = each.work, each.asks
        for tag in tags:
            found[tag.pool].append(tag)
        for name, mine in sent.items():
            asking = {tag.project_id for tag in found[name] if tag.asks}
            self._pools[name].turns.share(mine, {tag.project_id: tag.tag for tag in found[name]}, asking)


def _is_first(asker: Asker, pool: _Pool) -> bool:
    """Tell whether a batch comes first by deadline among those that wait; hopeless batches come last."""
    mine = asker in pool.hopeless, asker.ends_at_s
    return all(mine <= (other in pool.hopeless, other.ends_at_s) for other in pool.waiting)
