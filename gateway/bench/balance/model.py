"""A pool of replicas in simulated time: batches whose steps grow longer, adapter slots, loads one after another.

A discrete-event model that knows nothing of how a replica is chosen. A request that reaches a replica waits for its
adapter, then for a place in the batch. Slots go to the least recently used adapter that nobody uses or waits for.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from gateway.domain.balancing.replica import Asked, ReplicaLoad


class SimulationParameters(msgspec.Struct, frozen=True):
    """The parameters of a simulation."""

    replicas: int = 64
    adapters: int = 10_000
    slots: int = 32
    """The adapters that a replica holds at once."""
    zipf: float = 1.0
    """The exponent of the adapters' popularity, by Zipf's law."""
    places: int = 64
    """Requests that a replica runs at once."""
    load: float = 24.0
    """The mean number of requests at a replica, roughly: it sets the rate of arrivals."""
    tokens: float = 128.0
    """The mean number of tokens of a completion; the numbers are exponentially distributed."""
    step_ms: float = 15.0
    """Milliseconds of a decode step of an empty batch."""
    step_ms_each: float = 0.25
    """The milliseconds that each request in the batch adds to its steps."""
    load_ms: float = 100.0
    """Milliseconds of loading an adapter; a replica loads one at a time."""
    gateways: int = 4
    """The number of gateways, each of which picks replicas by heartbeats and by what it sent itself."""
    heartbeat_s: float = 1.0
    """Seconds between two heartbeats of a replica."""
    requests: int = 160_000
    seed: int = 0

    @property
    def rate(self) -> float:
        """The arrivals per second."""
        service_s = self.tokens * (self.step_ms + self.step_ms_each * self.load) / 1e3
        return self.replicas * self.load / service_s

    def weights(self) -> list[float]:
        """Return the adapters' shares of the requests."""
        raw = [1.0 / (rank + 1) ** self.zipf for rank in range(self.adapters)]
        total = sum(raw)
        return [each / total for each in raw]


class Arrival(msgspec.Struct, frozen=True):
    """A request of a simulated load before a gateway takes it."""

    at_s: float
    """The time of the arrival, in seconds from the beginning."""
    adapter: str
    """The content key of the adapter."""
    tokens: float
    """The number of tokens of the completion."""


def arrivals(world: SimulationParameters) -> list[Arrival]:
    """Return the requests of a run, the same ones for every policy."""
    rng = random.Random(world.seed)  # noqa: S311
    names = [adapter_name(number) for number in range(world.adapters)]
    drawn = rng.choices(names, world.weights(), k=world.requests)
    now_s, made = 0.0, []
    for adapter in drawn:
        now_s += rng.expovariate(world.rate)
        made.append(Arrival(now_s, adapter, rng.expovariate(1 / world.tokens)))
    return made


def adapter_name(number: int) -> str:
    """Return the made-up content key of the adapter with this number; keys of neighbors have nothing in common."""
    return f"{random.Random(number).getrandbits(256):064x}"  # noqa: S311


class Policy(Protocol):
    """The policy by which one gateway chooses a replica for each request."""

    def update(self, snapshot: ReplicaSnapshot, now_s: float) -> None:
        """Update the gateway's state of a replica by the replica's heartbeat."""

    def pick(self, asked: Asked) -> str:
        """Return the id of the replica that a request goes to."""

    def taken(self, replica_id: str, asked: Asked) -> None:
        """Count a request that was sent to a replica."""

    def given(self, replica_id: str, asked: Asked) -> None:
        """Count a request that a replica has ended."""


class ReplicaSnapshot(msgspec.Struct, frozen=True):
    """The state of a replica in a heartbeat, with the numbers that other routers read of a model server."""

    load: ReplicaLoad
    running_adapters: frozenset[str]
    """Keys of the adapters that running requests use."""
    waiting_adapters: frozenset[str]
    """Keys of the adapters that waiting requests want."""


class Request(msgspec.Struct, eq=False):
    """An arrival that a gateway has sent to a replica."""

    arrival: Arrival
    gateway: int
    asked: Asked


class Replica:
    """One replica's batch, slots and queue."""

    def __init__(self, name: str, world: SimulationParameters) -> None:
        self.name = name
        self.num_requests = self.num_loads = 0
        self.running: dict[str, int] = {}
        self.num_running = 0
        self._world = world
        self._slots: OrderedDict[str, None] = OrderedDict()
        self._loading: set[str] = set()
        self._users: dict[str, int] = {}
        self._ready: deque[Request] = deque()
        self._unready: dict[str, list[Request]] = {}
        self._link_free_s = 0.0

    @property
    def num_here(self) -> int:
        """The number of requests that run or wait here."""
        return self.num_running + self.num_waiting

    @property
    def num_waiting(self) -> int:
        """The number of requests that wait, with their adapter in a slot or without."""
        return len(self._ready) + sum(map(len, self._unready.values()))

    def arrive(self, request: Request) -> None:
        """Queue a request."""
        key = request.asked.adapter
        self.num_requests += 1
        self._users[key] = self._users.get(key, 0) + 1
        if key in self._slots:
            self._slots.move_to_end(key)
            self._ready.append(request)
        else:
            self._unready.setdefault(key, []).append(request)

    def loads_to_start(self, now_s: float) -> Iterator[tuple[float, str]]:
        """Begin to load the waiting adapters that find a slot; yield the time when each is loaded, and its key."""
        for key in self._unready:
            if key in self._loading:
                continue
            if len(self._slots) + len(self._loading) >= self._world.slots:
                idle = next((each for each in self._slots if not self._users.get(each)), None)
                if idle is None:
                    return
                del self._slots[idle]
            self._loading.add(key)
            self.num_loads += 1
            self._link_free_s = max(self._link_free_s, now_s) + self._world.load_ms / 1e3
            yield self._link_free_s, key

    def loaded(self, key: str) -> None:
        """Put an adapter into its slot, and let the requests that waited for it start."""
        self._loading.discard(key)
        self._slots[key] = None
        self._ready.extend(self._unready.pop(key))

    def starts(self) -> Iterator[tuple[float, Request]]:
        """Yield the requests that start to run, each with the seconds that it will take at the pace of its batch."""
        while self._ready and self.num_running < self._world.places:
            request = self._ready.popleft()
            self.num_running += 1
            self.running[request.asked.adapter] = self.running.get(request.asked.adapter, 0) + 1
            step_s = (self._world.step_ms + self._world.step_ms_each * self.num_running) / 1e3
            yield request.arrival.tokens * step_s, request

    def end(self, request: Request) -> None:
        """Remove a request that is done from the batch, and its adapter from the counts if no other request uses it."""
        key = request.asked.adapter
        self.num_running -= 1
        for counts in (self.running, self._users):
            counts[key] -= 1
            if not counts[key]:
                del counts[key]

    def snapshot(self) -> ReplicaSnapshot:
        """Return the state of the replica as a heartbeat tells it."""
        load = ReplicaLoad(
            id=self.name,
            running=self.num_running,
            waiting=self.num_waiting,
            capacity=self._world.places,
            adapter_slots=self._world.slots,
            resident=frozenset(self._slots),
            waiting_adapters=frozenset(self._unready),
            ready_since_s=-1e9,
        )
        waiting = frozenset(self._unready) | {request.asked.adapter for request in self._ready}
        return ReplicaSnapshot(load, frozenset(self.running), waiting)


class Outcome(msgspec.Struct):
    """The results of the second half of a run."""

    requests: int
    loads: int
    """The number of loads of adapters."""
    mean_load: float
    """The mean number of requests at a replica, over time and replicas."""
    busiest: float
    """The largest number of requests at one replica over the time, divided by the mean of all."""
    busiest_requests: float
    """The largest number of requests that one replica got, divided by the mean of all."""
    waits_s: list[float]
    """The seconds from arrival to the first step, sorted."""

    @property
    def hit_rate(self) -> float:
        """Return the share of requests that caused no load."""
        return 1.0 - self.loads / self.requests


class Simulation:
    """One run of a policy. policies: one policy for each gateway."""

    def __init__(self, world: SimulationParameters, policies: list[Policy]) -> None:
        self.world = world
        self.policies = policies
        self.replicas = {f"replica-{number}": Replica(f"replica-{number}", world) for number in range(world.replicas)}
        self._rng = random.Random(world.seed + 1)  # noqa: S311
        self._order = itertools.count()
        self._events: list[tuple[float, int, str, Replica, object]] = []
        self._waits_s: list[float] = []
        self._areas = dict.fromkeys(self.replicas, 0.0)
        self._counted_s = dict.fromkeys(self.replicas, 0.0)

    def run(self, requests: Sequence[Arrival]) -> Outcome:
        """Simulate the requests up to the last arrival, and return the outcome of their second half."""
        for number, replica in enumerate(self.replicas.values()):
            self._beat(replica, 0.0)
            self._push(self.world.heartbeat_s * (number + 1) / self.world.replicas, "beat", replica, None)
        half = len(requests) // 2
        before: dict[str, tuple[int, int]] = {}
        began_s = 0.0
        for number, arrival in enumerate(requests):
            self._run_until(arrival.at_s)
            if number == half:
                began_s = arrival.at_s
                before = {name: (each.num_requests, each.num_loads) for name, each in self.replicas.items()}
                for name in self.replicas:
                    self._areas[name], self._counted_s[name] = 0.0, began_s
                self._waits_s.clear()
            self._send_arrival(arrival)
        ended_s = requests[-1].at_s
        for replica in self.replicas.values():
            self._count_time(replica, ended_s)
        return self._outcome(before, ended_s - began_s)

    def _outcome(self, before: dict[str, tuple[int, int]], elapsed_s: float) -> Outcome:
        num_requests = [each.num_requests - before[name][0] for name, each in self.replicas.items()]
        loads = [each.num_loads - before[name][1] for name, each in self.replicas.items()]
        areas = list(self._areas.values())
        total, num = sum(num_requests), self.world.replicas
        return Outcome(
            requests=total,
            loads=sum(loads),
            mean_load=sum(areas) / elapsed_s / num,
            busiest=max(areas) * num / sum(areas),
            busiest_requests=max(num_requests) * num / total,
            waits_s=sorted(self._waits_s),
        )

    def _send_arrival(self, arrival: Arrival) -> None:
        gateway = self._rng.randrange(self.world.gateways)
        asked = Asked(arrival.adapter)
        policy = self.policies[gateway]
        name = policy.pick(asked)
        policy.taken(name, asked)
        replica = self.replicas[name]
        self._count_time(replica, arrival.at_s)
        replica.arrive(Request(arrival, gateway, asked))
        self._advance(replica, arrival.at_s)

    def _run_until(self, now_s: float) -> None:
        while self._events and self._events[0][0] <= now_s:
            at_s, _, kind, replica, what = heapq.heappop(self._events)
            if kind == "beat":
                self._beat(replica, at_s)
                self._push(at_s + self.world.heartbeat_s, "beat", replica, None)
                continue
            self._count_time(replica, at_s)
            if kind == "loaded":
                assert isinstance(what, str)
                replica.loaded(what)
            else:
                assert isinstance(what, Request)
                replica.end(what)
                self.policies[what.gateway].given(replica.name, what.asked)
            self._advance(replica, at_s)

    def _advance(self, replica: Replica, now_s: float) -> None:
        for at_s, key in replica.loads_to_start(now_s):
            self._push(at_s, "loaded", replica, key)
        for lasts_s, request in replica.starts():
            self._waits_s.append(now_s - request.arrival.at_s)
            self._push(now_s + lasts_s, "end", replica, request)

    def _beat(self, replica: Replica, now_s: float) -> None:
        snapshot = replica.snapshot()
        for policy in self.policies:
            policy.update(snapshot, now_s)

    def _count_time(self, replica: Replica, now_s: float) -> None:
        self._areas[replica.name] += replica.num_here * (now_s - self._counted_s[replica.name])
        self._counted_s[replica.name] = now_s

    def _push(self, at_s: float, kind: str, replica: Replica, what: object) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), kind, replica, what))
