"""A site in simulated time: machines that fail, engines that load, and requests that wait for a place.

The pools are scaled by `decide` and placed by `plan`, each second, as agents do it: from rows, and from what gateways
told a second ago. Nothing here decides anything itself.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from gateway.domain.pools.capacity import Host, Needs, Place
from gateway.domain.pools.plan import LIVE, Create, Drain, MarkLost, Pool, Replica, Revision, plan, room_of
from gateway.domain.pools.scaling import NEVER_S, Bounds, Decision, Load, Memory, PoolSnapshot, decide
from gateway.domain.pools.states import ReplicaState

GIB = 1 << 30
LEASE_S = 10
"""Seconds for which a machine that failed still counts as one with an agent."""
PAUSE_S = 2
"""Seconds until an agent restarts an engine that ended by itself."""

Decide = Callable[[Bounds, Memory | None, PoolSnapshot, float], Decision]


class Machine(msgspec.Struct):
    host: Host
    lost_at_s: int | None = None

    @property
    def is_up(self) -> bool:
        return self.lost_at_s is None

    def seen(self, now_s: int) -> Host:
        """Return the machine in the form that the planner takes."""
        if self.lost_at_s is None:
            return self.host
        away_s = max(float(now_s - self.lost_at_s - LEASE_S), 0.0)
        return msgspec.structs.replace(self.host, is_alive=away_s == 0, away_s=away_s)


class Engine(msgspec.Struct):
    id: str
    place: Place
    state: ReplicaState = "starting"
    moves_at_s: int = 0
    """The time of the next state: from starting to loading, from loading to ready, or from failed to loading."""
    num_running: int = 0


class Request(msgspec.Struct):
    came_at_s: int
    takes_s: int
    waited_s: int | None = None
    """The seconds until the request first began; None while it waits."""


class Change(msgspec.Struct, frozen=True):
    at_s: int
    before: int
    after: int
    is_bound: bool
    """True if the earlier number was outside the bounds."""


class PoolSecond(msgspec.Struct, frozen=True):
    """The numbers of one pool in one second."""

    num_engines: int
    """The number of engines on working machines, including those that load."""
    num_allowed: int
    """The number of engines that bounds and machines allow, beside those of other pools."""
    num_lost: int
    """The number of engines that were lost and cannot have restarted yet."""
    load_s: int
    """The seconds that an engine started now takes to load."""


class PoolRecord:
    """The record of one pool of a site.

    takes: for each second, the durations in seconds of the requests that come in it.
    """

    def __init__(
        self, name: str, bounds: Bounds, needs: Needs, *, places: int, kv_places: float, num_replicas: int
    ) -> None:
        self.bounds, self.places, self.kv_places = bounds, places, kv_places
        self.pool = Pool(name, num_replicas, 1, 1, {1: Revision(1, "prepared", needs)}, [])
        self.engines: dict[str, Engine] = {}
        self.queue: deque[Request] = deque()
        self.running: list[tuple[int, int, str, Request]] = []
        self.requests: list[Request] = []
        self.memory: Memory | None = None
        self.reported: Load | None = None
        self.used_s = -NEVER_S
        self.changes: list[Change] = []
        self.seconds: list[PoolSecond] = []
        self.losses: list[int] = []
        self.whys: list[str] = []

    @property
    def most_each(self) -> int:
        """The number of requests that one engine runs at once, by its places and its KV memory."""
        return min(self.places, int(self.kv_places))

    def serving(self, is_up: Callable[[str], bool]) -> list[Engine]:
        """Return the engines that take requests."""
        return [each for each in self.engines.values() if each.state == "ready" and is_up(each.place.host_id)]

    def load(self, serving: Sequence[Engine], now_s: int) -> Load:
        """Return the pool's load in the form that a gateway reports."""
        num_running, num_waiting = sum(each.num_running for each in serving), len(self.queue)
        return Load(
            num_ready=len(serving),
            places=len(serving) * self.places,
            num_running=num_running,
            num_waiting=num_waiting if serving else 0,
            num_held=0 if serving else num_waiting,
            kv_share=round(num_running / (len(serving) * self.kv_places), 3) if serving else 0.0,
            oldest_wait_s=float(now_s - self.queue[0].came_at_s) if self.queue and serving else 0.0,
            idle_s=now_s - self.used_s,
        )


class Site:
    """Simulated machines, and the pools whose replicas run on these machines.

    decide: decides about the number of replicas. load_s: seconds that an engine takes to load, by the second of its
    start."""

    def __init__(
        self,
        machines: Sequence[Machine],
        pools: Sequence[PoolRecord],
        load_s: Callable[[int], int],
        decide: Decide = decide,
    ) -> None:
        self.machines = {each.host.id: each for each in machines}
        self.pools = pools
        self._load_s, self._decide = load_s, decide
        self._num_made = self._num_begun = 0
        self.now_s = 0

    def is_up(self, host_id: str) -> bool:
        return self.machines[host_id].is_up

    def step(self, coming: Sequence[Sequence[int]]) -> None:
        """Simulate one second. coming: for each pool, the durations in seconds of arriving requests."""
        for served, takes in zip(self.pools, coming, strict=True):
            self._move_engines(served)
            self._serve(served, takes)
        self._scale()
        self._place()
        self._note()
        self.now_s += 1

    # faults

    def lose(self, host_id: str) -> None:
        """Make a machine fail, with all its engines."""
        self.machines[host_id].lost_at_s = self.now_s
        for served in self.pools:
            self._interrupt(served, {each.id for each in served.engines.values() if each.place.host_id == host_id})

    def bring_back(self, host_id: str) -> None:
        """Restore a failed machine, without its engines."""
        self.machines[host_id].lost_at_s = None
        for served in self.pools:
            for each in list(served.engines.values()):
                if each.place.host_id == host_id:
                    self._end(served, each)

    def kill(self, served: PoolRecord, engine_id: str) -> None:
        """Make one engine fail."""
        self._interrupt(served, {engine_id})
        self._end(served, served.engines[engine_id])

    def _end(self, served: PoolRecord, engine: Engine) -> None:
        if engine.state == "draining":
            del served.engines[engine.id]
        else:
            engine.state, engine.moves_at_s = "failed", self.now_s + PAUSE_S

    def _interrupt(self, served: PoolRecord, ids: set[str]) -> None:
        """Restart the requests of failed engines, ahead of all others."""
        served.losses += [self.now_s for id in ids if served.engines[id].state == "ready"]
        again = [each for each in served.running if each[2] in ids]
        served.running = [each for each in served.running if each[2] not in ids]
        heapq.heapify(served.running)
        served.queue.extendleft(request for *_, request in sorted(again, reverse=True))
        for id in ids:
            served.engines[id].num_running = 0

    # one second

    def _move_engines(self, served: PoolRecord) -> None:
        for each in list(served.engines.values()):
            if not self.is_up(each.place.host_id) or each.moves_at_s > self.now_s:
                continue
            if each.state in ("starting", "failed"):
                each.state, each.moves_at_s = "loading", self.now_s + self._load_s(self.now_s)
            elif each.state == "loading":
                each.state = "ready"
            elif each.state == "draining" and not each.num_running:
                del served.engines[each.id]

    def _serve(self, served: PoolRecord, takes: Sequence[int]) -> None:
        while served.running and served.running[0][0] <= self.now_s:
            served.engines[heapq.heappop(served.running)[2]].num_running -= 1
        for each in takes:
            request = Request(self.now_s, each)
            served.queue.append(request)
            served.requests.append(request)
        serving = served.serving(self.is_up)
        most_each = served.most_each
        free = [(each.num_running, each.id) for each in serving if each.num_running < most_each]
        heapq.heapify(free)
        while served.queue and free:
            num_running, id = free[0]
            request = served.queue.popleft()
            if request.waited_s is None:
                request.waited_s = self.now_s - request.came_at_s
            self._num_begun += 1
            heapq.heappush(served.running, (self.now_s + request.takes_s, self._num_begun, id, request))
            served.engines[id].num_running = num_running + 1
            heapq.heapreplace(free, (num_running + 1, id)) if num_running + 1 < most_each else heapq.heappop(free)
        if takes:
            served.used_s = float(self.now_s)

    def _scale(self) -> None:
        for served in self.pools:
            number = served.pool.num_replicas
            num_ready = sum(each.state == "ready" for each in served.engines.values())
            decision = self._decide(
                served.bounds, served.memory, PoolSnapshot(number, num_ready, served.reported), float(self.now_s)
            )
            served.memory = decision.memory
            if decision.num_replicas != number:
                is_bound = not served.bounds.min_replicas <= number <= served.bounds.max_replicas
                served.changes.append(Change(self.now_s, number, decision.num_replicas, is_bound))
                served.whys.append(decision.why)
                served.pool = msgspec.structs.replace(served.pool, num_replicas=decision.num_replicas)
            served.reported = served.load(served.serving(self.is_up), self.now_s)

    def _place(self) -> None:
        hosts = [each.seen(self.now_s) for each in self.machines.values()]
        for served in self.pools:
            served.pool = msgspec.structs.replace(
                served.pool, replicas=[_row(each) for each in served.engines.values()]
            )
        pools = {each.pool.id: each for each in self.pools}
        for action in plan([each.pool for each in self.pools], hosts):
            match action:
                case Create(pool_id, _, place):
                    self._num_made += 1
                    id = f"r{self._num_made}"
                    assert hosts[[each.id for each in hosts].index(place.host_id)].takes(_needs(pools[pool_id]))
                    pools[pool_id].engines[id] = Engine(id, place, moves_at_s=self.now_s + 1)
                case Drain(id) | MarkLost(id):
                    served = next(each for each in self.pools if id in each.engines)
                    self._drain(served, served.engines[id], is_lost=isinstance(action, MarkLost))
                case _:
                    raise AssertionError(action)

    def _drain(self, served: PoolRecord, engine: Engine, *, is_lost: bool) -> None:
        if is_lost or engine.state != "ready":
            self._interrupt(served, {engine.id})
            del served.engines[engine.id]
        else:
            engine.state = "draining"

    def _note(self) -> None:
        hosts = [each.seen(self.now_s) for each in self.machines.values() if each.is_up]
        for served in self.pools:
            served.pool = msgspec.structs.replace(
                served.pool, replicas=[_row(each) for each in served.engines.values()]
            )
        room = room_of([each.pool for each in self.pools], hosts)
        load_s = self._load_s(self.now_s)
        for served in self.pools:
            there = [each for each in served.engines.values() if self.is_up(each.place.host_id)]
            num_live = num_allowed = sum(each.state in LIVE for each in there)
            spare = room.copy()
            while num_allowed < served.bounds.max_replicas and spare.take(_needs(served)) is not None:
                num_allowed += 1
            num_wanted = sum(each.state in LIVE for each in served.engines.values())  # those of a lost machine as well
            is_met = num_wanted >= served.pool.num_replicas or num_allowed == num_live
            assert is_met, "a replica that is wanted was not started though a machine has room"
            back_s = LEASE_S + 30 + load_s + 3
            num_lost = sum(self.now_s - each <= back_s for each in served.losses)
            served.seconds.append(PoolSecond(len(there), num_allowed, num_lost, load_s))


def _row(engine: Engine) -> Replica:
    return Replica(engine.id, 1, engine.state, engine.place)


def _needs(served: PoolRecord) -> Needs:
    return served.pool.revisions[1].needs
