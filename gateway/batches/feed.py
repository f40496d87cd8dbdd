"""The number of further lines that the engines want: each heartbeat of an engine gives credit, which a line takes.

Projects whose lines wait for the same pool get its credit in turns, so that each has as many lines in flight there,
however many batches it has: what an engine holds is all that the engine can share out.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import NamedTuple, Protocol

FOREIGN_AT_ONCE = 4
"""The most lines that run at once at a pool whose servers give no credit."""

WAITS_S = 5.0
"""Seconds for which a project counts as one that waits, from its last line that got no place. A slow database may keep
its batches from asking again for a while, in which others must not take its turn."""


def base_of(model: str) -> str:
    """Return the base model that the model of a line names."""
    return model.partition(":")[0]


class Credited(Protocol):
    """A pool, as far as lines of batches need it."""

    def take_batch_credit(self) -> bool | None:
        """Take credit for one line; False where there is none now, None where the pool's servers know no credit."""


class Place(NamedTuple):
    """The place that a line has taken at a pool."""

    pool: str
    project_id: str
    is_foreign: bool


class Feed:
    """The credit of all pools. A gateway process has one."""

    def __init__(self, pools: Mapping[str, Credited]) -> None:
        self._pools = pools
        self._foreign: Counter[str] = Counter()
        self._in_flight: defaultdict[str, Counter[str]] = defaultdict(Counter)  # of each pool, by project
        self._waiting: defaultdict[str, dict[str, float]] = defaultdict(dict)  # of each pool, when projects waited last

    def take(self, model: str, project_id: str) -> Place | None:
        """Take a place for a line of a model, and return what `give` wants back; None where there is none now."""
        name = base_of(model)
        for each in [name] if name in self._pools else list(self._pools):
            if self._is_turn_of(project_id, each):
                credit = self._pools[each].take_batch_credit()
                is_foreign = credit is None and self._foreign[each] < FOREIGN_AT_ONCE
                if credit or is_foreign:
                    self._foreign[each] += is_foreign
                    self._in_flight[each][project_id] += 1
                    self._waiting[each].pop(project_id, None)
                    return Place(each, project_id, is_foreign)
            self._waiting[each][project_id] = time.monotonic()
        return None

    def give(self, place: Place) -> None:
        """Give a place back."""
        self._foreign[place.pool] -= place.is_foreign
        in_flight = self._in_flight[place.pool]
        in_flight[place.project_id] -= 1
        if not in_flight[place.project_id]:
            del in_flight[place.project_id]

    def leave(self, project_id: str) -> None:
        """Note that a batch of a project begins no more lines: only those that go on asking wait."""
        for waiting in self._waiting.values():
            waiting.pop(project_id, None)

    def _is_turn_of(self, project_id: str, pool: str) -> bool:
        """Tell whether no other project waits for the pool that has fewer lines in flight there."""
        waiting, in_flight = self._waiting[pool], self._in_flight[pool]
        now_s = time.monotonic()
        for other, last_s in list(waiting.items()):
            if now_s - last_s > WAITS_S:
                del waiting[other]
            elif in_flight[other] < in_flight[project_id]:
                return False
        return True
