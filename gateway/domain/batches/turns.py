"""The turns of projects at a pool, by the work that each got there: start-time fair queueing (Goyal et al., 1996).

Knows projects and numbers only, neither lines nor engines nor a database.

Each project has a tag: the work that it got, on a scale that all share. The project with the smallest tag goes first.
When a line begins, the project is charged an estimate of the line's work; when the line ends, the difference to the
line's actual work. A project saves nothing up while it does not ask: when it asks again, its tag is raised to the
smallest tag of the projects that ask.

Bound. Two projects that both ask throughout an interval get work in it that differs by at most the two longest lines
and twice the most by which the estimates of all lines in flight err.

Several gateways share tags by adding to the same numbers what each of them charged (`unshared`, `share`). The bound
then grows by what the others charged since.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

ASKS_S = 5.0
"""Seconds for which a project counts as asking since its last question.

A slow database may keep it from asking again for a while, after which it gets what the others got meanwhile.
"""


class Turns:
    """The tags of the projects at one pool."""

    def __init__(self) -> None:
        self._tags: dict[str, float] = {}
        self._asked_s: dict[str, float] = {}
        self._floor = 0.0  # the smallest tag of those that asked, when a line began last
        self._unshared: defaultdict[str, float] = defaultdict(float)
        self._ahead: defaultdict[str, float] = defaultdict(float)  # work of places out of turn

    def ask(self, project_id: str, now_s: float) -> None:
        """Record that a line of a project waits."""
        if now_s - self._asked_s.get(project_id, float("-inf")) > ASKS_S:
            self._tags[project_id] = max(self._tags.get(project_id, self._floor), self._floor)
        self._asked_s[project_id] = now_s

    def leave(self, project_id: str) -> None:
        """Record that no line of a project waits any more."""
        self._asked_s.pop(project_id, None)

    def is_turn_of(self, project_id: str, others: Iterable[str]) -> bool:
        """Tell whether none of the other projects, which all have asked, got less work than this one."""
        mine = self._place_of(project_id)
        return all(self._place_of(other) >= mine for other in others)

    def begin(self, project_id: str, work: float, now_s: float) -> None:
        """Charge the estimated work of a line that begins, for a project that has asked."""
        asking = [self._tags[each] for each, last_s in self._asked_s.items() if now_s - last_s <= ASKS_S]
        self._floor = max(self._floor, min(asking, default=self._floor))
        self.charge(project_id, work)

    def charge(self, project_id: str, work: float) -> None:
        """Charge work to a project. A negative amount gives work back."""
        self._tags[project_id] = self._tags.get(project_id, self._floor) + work
        self._unshared[project_id] += work

    def charge_ahead(self, project_id: str, work: float) -> None:
        """Charge work that a project got out of turn, until `forget_ahead`."""
        self._ahead[project_id] += work

    def forget_ahead(self) -> None:
        """Cancel the charges for work out of turn, so that projects do not wait because of it."""
        self._ahead.clear()

    def unshared(self, now_s: float) -> dict[str, tuple[float, bool]]:
        """Return, by project, the charged work that other gateways do not know, and whether the project asks."""
        asking = {each for each, last_s in self._asked_s.items() if now_s - last_s <= ASKS_S}
        self._asked_s = {each: self._asked_s[each] for each in asking}
        return {each: (self._unshared.get(each, 0.0), each in asking) for each in asking | self._unshared.keys()}

    def share(self, sent: Mapping[str, tuple[float, bool]], tags: Mapping[str, float], asking: Collection[str]) -> None:
        """Replace the tags by the tags that all gateways share.

        sent: the result of `unshared` that the tags contain. asking: the projects, of any gateway, that ask.
        """
        for project_id, (work, _) in sent.items():
            left = self._unshared[project_id] - work
            if left:
                self._unshared[project_id] = left
            else:
                del self._unshared[project_id]
        kept = {each: tag for each, tag in self._tags.items() if each in self._asked_s}
        self._tags = kept | {each: tag + self._unshared.get(each, 0.0) for each, tag in tags.items()}
        self._floor = min((self._tags[each] for each in asking if each in self._tags), default=self._floor)

    def _place_of(self, project_id: str) -> float:
        return self._tags.get(project_id, self._floor) + self._ahead.get(project_id, 0.0)
