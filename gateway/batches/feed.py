"""The number of further lines that the engines want: each heartbeat of an engine gives credit, which a line takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

FOREIGN_AT_ONCE = 4
"""The most lines that run at once at a pool whose servers give no credit."""


class Credited(Protocol):
    """A pool, as far as lines of batches need it."""

    def take_batch_credit(self) -> bool | None:
        """Take credit for one line; False where there is none now, None where the pool's servers know no credit."""


class Feed:
    """The credit of all pools. A gateway process has one."""

    def __init__(self, pools: Mapping[str, Credited]) -> None:
        self._pools = pools
        self._foreign: dict[str, int] = {}

    def take(self, model: str) -> str | None:
        """Take a place for a line of a model, and return what `give` wants back; None where there is none now."""
        name = model.partition(":")[0]
        for each in [name] if name in self._pools else list(self._pools):
            credit = self._pools[each].take_batch_credit()
            if credit is None and self._foreign.get(each, 0) < FOREIGN_AT_ONCE:
                self._foreign[each] = self._foreign.get(each, 0) + 1
                return each
            if credit:
                return ""
        return None

    def give(self, place: str) -> None:
        """Give a place back."""
        if place:
            self._foreign[place] -= 1
