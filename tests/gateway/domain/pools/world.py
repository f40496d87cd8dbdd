"""A simulation for the planner of pools: agents that carry out plans, and engines that load, serve and fail.

Time passes in steps. There is no SQL and no process; states of replicas change as `gateway.db.pools` allows.
"""

from __future__ import annotations

import msgspec

from gateway.domain.pools.capacity import Host, Needs, Place
from gateway.domain.pools.plan import (
    LIVE,
    Create,
    Drain,
    GiveUp,
    Pool,
    Replica,
    Revision,
    SwitchRevision,
    plan,
    room_of,
)
from gateway.domain.pools.states import ReplicaState

GIB = 1 << 30


def host(memory_gib: int = 64, gpus: int = 0, name: str = "one", *, is_alive: bool = True) -> Host:
    return Host(f"host_{name}", name, is_alive, memory_gib * GIB, [80 * GIB] * gpus)


def revision(number: int, gib: int = 2, **changes: object) -> Revision:
    return msgspec.structs.replace(Revision(number, "prepared", Needs(gib * GIB)), **changes)


def pool(num_replicas: int = 1, serves: int | None = 1, wants: int | None = None, **changes: object) -> Pool:
    """Return a pool `p` with prepared revisions 1 and 2 and no replicas.

    serves: the number of the serving revision; None: none serves. wants: the number of the wanted revision; None: the
    serving one, or 1 if none serves.
    """
    wanted = wants or serves or 1
    made = Pool("p", num_replicas, serves, wanted, {1: revision(1), 2: revision(2)}, [])
    return msgspec.structs.replace(made, **changes)


def replica(name: str, state: ReplicaState = "ready", number: int = 1, **changes: object) -> Replica:
    return msgspec.structs.replace(Replica(name, number, state, Place("host_one")), **changes)


class World:
    """Simulated pools, hosts and replicas.

    broken: the revisions whose engines end before they are ready, as (pool, number).
    """

    def __init__(self, hosts: list[Host]) -> None:
        self.hosts = hosts
        self.pools: dict[str, Pool] = {}
        self.broken: set[tuple[str, int]] = set()
        self._num_made = 0

    def decide(self) -> list[object]:
        """Plan once and execute the plan; return the planned actions."""
        actions = plan(list(self.pools.values()), self.hosts)
        for action in actions:
            match action:
                case Create(pool_id, number, place):
                    self._num_made += 1
                    self._add(pool_id, Replica(f"r{self._num_made}", number, "starting", place))
                case Drain(replica_id):
                    self._drain(replica_id)
                case SwitchRevision(pool_id, number):
                    assert self.pools[pool_id].wanted_revision == number
                    self.change(pool_id, revision=number)
                case GiveUp(pool_id, number, back_to, why):
                    self._give_up(pool_id, number, back_to, why)
        return list(actions)

    def move(self, pool_id: str, replica_id: str) -> None:
        """Advance one replica by one state, as its agent and engine do."""
        now = next(each for each in self.pools[pool_id].replicas if each.id == replica_id)
        match now.state:
            case "starting" | "failed":
                self._set(pool_id, now, state="loading")
            case "loading" if (pool_id, now.revision) in self.broken:
                self._set(pool_id, now, state="failed", num_failures=now.num_failures + 1, why="no such device")
            case "loading":
                self._set(pool_id, now, state="ready", num_failures=0)
            case "draining":
                self._remove(pool_id, replica_id)

    def kill(self, pool_id: str, replica_id: str) -> None:
        """Make a serving engine end."""
        now = next(each for each in self.pools[pool_id].replicas if each.id == replica_id)
        if now.state == "ready" and now.place is not None:
            self._set(pool_id, now, state="failed", num_failures=now.num_failures + 1, why="killed")

    def settle(self, rounds: int = 60) -> None:
        """Repeat planning and moving until nothing is planned and no replica moves."""
        for _ in range(rounds):
            planned = self.decide()
            moving = [
                (pool.id, each.id) for pool in self.pools.values() for each in pool.replicas if each.state != "ready"
            ]
            for pool_id, replica_id in moving:
                self.move(pool_id, replica_id)
            if not planned and not moving:
                return
        raise AssertionError(f"it never comes to rest: {self.pools}")

    def change(self, pool_id: str, **changes: object) -> None:
        self.pools[pool_id] = msgspec.structs.replace(self.pools[pool_id], **changes)

    def in_state(self, pool_id: str, number: int | None, *states: ReplicaState) -> list[Replica]:
        return [each for each in self.pools[pool_id].replicas if each.revision == number and each.state in states]

    def live(self, pool_id: str) -> list[Replica]:
        return [each for each in self.pools[pool_id].replicas if each.state in LIVE]

    def is_overfull(self) -> bool:
        """Tell whether the replicas of some host are estimated to take more memory than it has."""
        room = room_of(list(self.pools.values()), self.hosts)
        return any(room.find(Needs(0)) is None for _ in self.hosts)

    def set_replica(self, pool_id: str, replica_id: str, **changes: object) -> None:
        self._set(pool_id, next(each for each in self.pools[pool_id].replicas if each.id == replica_id), **changes)

    def _add(self, pool_id: str, replica: Replica) -> None:
        self.change(pool_id, replicas=[*self.pools[pool_id].replicas, replica])

    def _set(self, pool_id: str, replica: Replica, **changes: object) -> None:
        replaced = msgspec.structs.replace(replica, **changes)
        replicas = [replaced if each.id == replica.id else each for each in self.pools[pool_id].replicas]
        self.change(pool_id, replicas=replicas)

    def _remove(self, pool_id: str, replica_id: str) -> None:
        self.change(pool_id, replicas=[each for each in self.pools[pool_id].replicas if each.id != replica_id])

    def _drain(self, replica_id: str) -> None:
        for pool_id, pool in self.pools.items():
            for each in pool.replicas:
                if each.id == replica_id:
                    if each.state == "starting" or each.place is None:
                        self._remove(pool_id, replica_id)
                    else:
                        self._set(pool_id, each, state="draining")

    def _give_up(self, pool_id: str, number: int, back_to: int | None, why: str) -> None:
        pool = self.pools[pool_id]
        failed = msgspec.structs.replace(pool.revisions[number], state="failed", why=why)
        self.change(pool_id, revisions={**pool.revisions, number: failed})
        if back_to is not None:
            self.change(pool_id, wanted_revision=back_to)
