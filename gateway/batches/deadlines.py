"""Finds batches that may miss their deadlines, by the work that is left of each and the pace of the pool.

Batches are taken to be served one after the other. Work counts in tokens, a completion's twice. Knows neither lines nor
engines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import inf
from operator import itemgetter
from typing import NamedTuple, TypeVar

T = TypeVar("T")

URGENT_S = 3600.0
"""Seconds of slack below which deadlines go before turns: lines in flight, or a falling pace, take less."""

HOPELESS = 1.5
"""The multiple of the time to its deadline beyond which a batch's work makes the batch hopeless.

A batch is hopeless that needs HOPELESS times as long as it has, and URGENT_S more: nobody waits for it. One that is
late by less may be in time yet, since the pace is only measured.
"""

WINDOW_S, WINDOW_LINES = 300.0, 32
"""The pace is that of the last seconds, or of the last lines if they took longer."""

ENOUGH_LINES = 8
"""The number of ended lines from which the pace counts as known."""


class Backlog(NamedTuple):
    """The work that is left of one batch, and when it is due, by the clock of the caller."""

    ends_at_s: float
    """The time at which the batch expires, in seconds."""
    work: float
    """The work of all lines that are left."""


def find_late(backlogs: Iterable[tuple[Backlog, T]], work_per_s: float, now_s: float) -> tuple[bool, list[T]]:
    """Tell whether a batch has less slack than URGENT_S, and return the batches that are hopeless.

    A backlog comes with something that names its batch, which is returned. Batches are served by their deadlines, which
    keeps all of them where any order does (Liu and Layland, 1973).

    work_per_s: the work that the pool did in a second lately.
    """
    is_urgent, needed_s = False, 0.0
    hopeless: list[T] = []
    for backlog, each in sorted(backlogs, key=itemgetter(0)):
        left_s, mine_s = backlog.ends_at_s - now_s, backlog.work / work_per_s
        if needed_s + mine_s > HOPELESS * left_s + URGENT_S:
            hopeless.append(each)
            continue
        needed_s += mine_s
        is_urgent = is_urgent or left_s - needed_s < URGENT_S
    return is_urgent, hopeless


class Pace:
    """The work per second that a pool does for the batches of a gateway."""

    def __init__(self) -> None:
        self._ended: deque[tuple[float, float]] = deque()
        self._since_s = 0.0
        self._work = 0.0

    def begin(self, now_s: float) -> None:
        """Forget the pace, after a time without lines in flight."""
        self._ended.clear()
        self._since_s, self._work = now_s, 0.0

    def note(self, work: float, now_s: float) -> None:
        """Record that a line has ended.

        work: the work of the line, in the unit of backlogs.
        """
        self._ended.append((now_s, work))
        self._work += work
        while len(self._ended) > WINDOW_LINES and self._ended[0][0] < now_s - WINDOW_S:
            self._since_s, work = self._ended.popleft()
            self._work -= work

    def work_per_s(self, now_s: float) -> float:
        """Return the work done per second lately; infinity while too few lines have ended to know it."""
        if len(self._ended) < ENOUGH_LINES or now_s <= self._since_s or self._work <= 0:
            return inf
        return self._work / (now_s - self._since_s)

    @property
    def work_per_line(self) -> float:
        """The mean work of a line in tokens; 1 while it is not known."""
        return self._work / len(self._ended) if self._ended and self._work > 0 else 1.0
