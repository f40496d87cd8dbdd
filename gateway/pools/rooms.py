"""The waiting rooms of this gateway's pools, in which requests wait for the first replica of a pool that starts one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from gateway.backends.waiting_room import WaitingRoom, WaitTerms
from gateway.db.pools.served import ServedPool
from gateway.domain.pools.plan import MAX_FAILURES

USUAL_START_S = 30.0
"""Seconds that a first replica is expected to take to become ready where no start was measured."""


class Rooms:
    """The waiting rooms by the pools' ids: the requests of each pool that wait for its first replica."""

    def __init__(self, max_wait_s: float) -> None:
        """Make rooms. max_wait_s: seconds for which a request waits for a first replica."""
        self.awaited = asyncio.Event()
        """Set when a request begins to wait in a room of this gateway where no other request waits."""
        self._max_wait_s = max_wait_s
        self._is_leaving = False
        self._rooms: dict[str, WaitingRoom] = {}

    def room_of(self, served: ServedPool) -> WaitingRoom:
        """Return the waiting room of a pool. It is open if the pool starts its replicas when requests come."""
        room = self._rooms.setdefault(served.row.id, WaitingRoom(served.row.name, self.awaited.set))
        terms = None
        if served.scaling is not None and not (self._is_leaving or served.is_removed or _is_hopeless(served)):
            start_s = served.scaling.start_s
            terms = WaitTerms(self._max_wait_s, USUAL_START_S if start_s is None else start_s)
        room.open(terms)
        return room

    def keep(self, pool_ids: Iterable[str]) -> None:
        """Keep only the rooms of these pools. Requests that wait in other rooms are refused."""
        remaining = set(pool_ids)
        for pool_id in self._rooms.keys() - remaining:
            self._rooms.pop(pool_id).open(None)

    def leave(self) -> None:
        """Make all waiting rooms refuse requests: this gateway is about to stop."""
        self._is_leaving = True
        for room in self._rooms.values():
            room.open(None)


def starts_when_asked(served: ServedPool) -> bool:
    """Tell whether a pool may be without replicas until a request comes."""
    return served.scaling is not None and served.scaling.min_replicas == 0


def _is_hopeless(served: ServedPool) -> bool:
    """Tell whether the replicas of a pool fail so often that waiting for one is useless."""
    managed = [each for each in served.replicas if each.host_id is not None]
    return bool(managed) and all(each.num_failures >= MAX_FAILURES for each in managed)
