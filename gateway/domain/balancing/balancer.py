"""The choice of the replica of a pool that takes a request. Pure: no clock, no I/O; an answer takes microseconds.

An adapter prefers replicas in an order of its own (`orders`), in which the first one with room takes the request
(consistent hashing with bounded loads; Mirrokni, Thorup and Zadimoghaddam, 2016). So a cold adapter lives on one
replica and a hot one on as many as it fills. A replica has room while

    load < max(BOUND * share, min(share + SIGMAS * sqrt(share), capacity), FLOOR * capacity)

share: the replica's part of the pool's load, by capacity. A count of requests fluctuates by the square root of its
mean: moving adapters after fluctuations would cost a load each time and gain nothing while the batch has places. FLOOR
keeps a few requests from spreading over an idle pool.

1. Replicas where the adapter is resident or on its way come first: the one that knows the prompt's beginning, else the
   least loaded. If all of them have more than their share, an adapter that makes up `HOT` of their load or more also
   goes to a replica with less than its own: such a copy is used at once, and cold adapters need not move instead.
2. Then all replicas in the adapter's order, but none where many adapters are already on their way.
3. If none has room, the one with the least load.

For the base model the prompt's beginning stands for the adapter; a prompt without one takes the lesser load of two
replicas drawn at random (Mitzenmacher, 2001).

A tenant that alone would fill a replica has at most `BOUND` times its own mean there, while another replica has room:
so its requests go where the tenant's share of the pool is free (see `gateway.domain.balancing.service`).

Slow start. A replica that begins to serve counts with a growing part of its capacity and is preferred by as large a
part of the keys, the same ones at every gateway, so it does not load all its adapters at once. A replica that is found
slow beside others counts with a part of its capacity in the same way (`answer_times`).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Set
from math import sqrt

from gateway.domain.balancing.orders import Orders, bucket_of, uniform
from gateway.domain.balancing.prefixes import PrefixMemory
from gateway.domain.balancing.replica import Asked, ReplicaLoad
from gateway.domain.balancing.state import ReplicaState

BOUND = 1.25
SIGMAS = 3.0
FLOOR = 1 / 16
HOT = 0.5
LEVEL = 1.1
"""The factor by which a replica may exceed its share and still count as level with the others."""
SLOW_START_S = 30.0
_NOBODY: frozenset[str] = frozenset()


class Balancer:
    """Picks among the replicas of one pool for one gateway.

    seed: the seed of its random draws, different in each gateway.
    """

    def __init__(self, *, seed: int = 0, slow_start_s: float = SLOW_START_S) -> None:
        self._slow_start_s = slow_start_s
        self._random = random.Random(seed)  # noqa: S311 - spreads load
        self._replicas: dict[str, ReplicaState] = {}
        self._available: list[ReplicaState] = []
        self._orders: Orders[ReplicaState] = Orders()
        self._memory: PrefixMemory[ReplicaState] = PrefixMemory()
        self._homes: dict[str, set[ReplicaState]] = {}
        self._load = 0.0
        self._capacity = 0.0
        self._num_gateways = 1

    # the pool's replicas

    def add(self, replica_id: str, weight: float = 1.0) -> None:
        """Add a replica, which gets nothing before its first snapshot.

        weight: the size of the replica's share of adapters, beside the others' weights.
        """
        if replica_id in self._replicas:
            return
        self._replicas[replica_id] = ReplicaState(replica_id, weight)
        self._orders.set_members(self._replicas.values())
        self.share_among(self._num_gateways)

    def remove(self, replica_id: str) -> None:
        """Remove a replica, and forget which adapters and prompts are there."""
        replica = self._replicas.pop(replica_id, None)
        if replica is None:
            return
        self._set_homes(replica, set())
        self._memory.forget(replica)
        self._orders.set_members(self._replicas.values())
        self._recount()

    def update(self, picture: ReplicaLoad, now_s: float) -> None:
        """Store a snapshot of a replica that was added.

        now_s: the time on a monotonic clock, the same clock in all calls.
        """
        replica = self._replicas.get(picture.id)
        if replica is None:
            return
        replica.update(picture, now_s, self._slow_start_s)
        self._set_homes(replica, replica.adapters_now())
        self._recount()

    def share_among(self, num_gateways: int) -> None:
        """Set the number of gateways that send requests to the same replicas."""
        self._num_gateways = max(1, num_gateways)
        for replica in self._replicas.values():
            replica.num_gateways = self._num_gateways

    def pace(self, paces: Mapping[str, float]) -> None:
        """Set the part of its capacity with which each replica counts, by id; others count with all of it."""
        changed = [each for each in self._replicas.values() if each.pace != paces.get(each.id, 1.0)]
        for replica in changed:
            replica.pace = paces.get(replica.id, 1.0)
        if changed:
            self._recount()

    def loads(self) -> dict[str, float]:
        """Return the load of each replica that takes requests, in units of `Asked.units`."""
        return {replica.id: replica.load for replica in self._available}

    # requests

    def pick(self, asked: Asked, exclude: Set[str] = _NOBODY) -> str | None:
        """Return the id of the replica for a request; None where all are excluded or none is available.

        Nothing is counted before `taken`.
        """
        if not self._available:
            return None
        key = asked.adapter or (asked.prefixes[0] if asked.prefixes else "")
        if not key:
            replica = self._pick_of_two(asked, exclude)
        else:
            replica = self._pick_by_prefix(asked, exclude) if asked.prefixes else None
            if replica is None and asked.adapter:
                replica = self._pick_home(asked, exclude)
            if replica is None:
                replica = self._pick_in_order(asked, bucket_of(key), exclude)
        if replica is None:
            replica = self._pick_least(asked, exclude)
        return None if replica is None else replica.id

    def taken(self, replica_id: str, asked: Asked) -> None:
        """Count a request that was sent to a replica."""
        replica = self._replicas.get(replica_id)
        if replica is None:
            return
        before = replica.load
        replica.take(asked)
        if replica.available:
            self._load += replica.load - before
        if asked.adapter and asked.adapter not in replica.homes:
            replica.homes.add(asked.adapter)
            self._homes.setdefault(asked.adapter, set()).add(replica)
        if asked.prefixes:
            self._memory.remember(asked.prefixes, replica)

    def given(self, replica_id: str, asked: Asked) -> None:
        """Count the end of a request that was taken."""
        replica = self._replicas.get(replica_id)
        if replica is None:
            return
        before = replica.load
        replica.give(asked)
        if replica.available:
            self._load += replica.load - before

    # choices

    def _pick_by_prefix(self, asked: Asked, exclude: Set[str]) -> ReplicaState | None:
        """Return the replica that has the prompt's beginning in its cache, if its load allows it; else None.

        More load is allowed where that is most of the prompt (Preble; Srivatsa et al., 2024).
        """
        homes = self._homes.get(asked.adapter) if asked.adapter else None
        if asked.adapter and not homes:
            return None
        known = self._memory.longest(asked.prefixes)
        if known is not None and (homes is None or known[0] in homes) and self._has_room(known[0], asked, exclude):
            if known[1] or self._is_level(known[0]):
                return known[0]
        elif homes is not None and len(homes) > 1:
            for replica in self._orders.order_of(bucket_of(asked.prefixes[0])):
                if replica in homes and self._is_level(replica) and self._has_room(replica, asked, exclude):
                    return replica
        return None

    def _pick_home(self, asked: Asked, exclude: Set[str]) -> ReplicaState | None:
        """Return a replica that has the adapter and room for the request, or one that a hot adapter spreads to."""
        homes = self._homes.get(asked.adapter)
        if not homes:
            return None
        roomy = [replica for replica in homes if self._has_room(replica, asked, exclude)]
        least = self._least(roomy, asked)
        if least is None or self._is_level(least) or not self._is_hot(asked.adapter, homes):
            return least
        share = self._load / self._capacity
        for replica in self._orders.order_of(bucket_of(asked.adapter)):
            if (
                replica not in homes
                and replica.load <= share * replica.capacity
                and replica.takes_adapters
                and self._has_room(replica, asked, exclude)
            ):
                return replica
        return least

    def _pick_in_order(self, asked: Asked, bucket: int, exclude: Set[str]) -> ReplicaState | None:
        """Return the first replica in a key's order that has room.

        A replica that starts slowly is chosen for some keys alone.

        bucket: the bucket of the key (`orders`). exclude: the ids of replicas that may not be chosen.
        """
        brings_adapter = bool(asked.adapter)
        for replica in self._orders.order_of(bucket):
            if (
                self._has_room(replica, asked, exclude)
                and (replica.ramp >= 1.0 or uniform(~bucket, replica.seed) < replica.ramp)
                and (not brings_adapter or replica.takes_adapters)
            ):
                return replica
        return None

    def _pick_of_two(self, asked: Asked, exclude: Set[str]) -> ReplicaState | None:
        draw, num = self._random.random, len(self._available)
        first = int(draw() * num)
        second = (first + 1 + int(draw() * (num - 1))) % num
        one, other = self._available[first], self._available[second]
        lesser = one if _fullness(one, asked) <= _fullness(other, asked) else other
        return lesser if self._has_room(lesser, asked, exclude) else None

    def _pick_least(self, asked: Asked, exclude: Set[str]) -> ReplicaState | None:
        allowed = [replica for replica in self._available if replica.id not in exclude]
        roomy = [replica for replica in allowed if replica.has_room_for(asked.prompt_tokens)]
        return self._least(roomy or allowed, asked)

    def _least(self, replicas: list[ReplicaState], asked: Asked) -> ReplicaState | None:
        """Return the replica that would serve a request first: the one with the least load.

        While requests wait everywhere, it is the one with the least load of the tenant's own, since engines take turns
        between tenants. Among equal replicas every gateway finds the same one.
        """
        tenant = asked.tenant if self._load >= self._capacity else ""
        if tenant:
            return min(
                replicas,
                key=lambda each: (each.of_tenant(tenant) / each.capacity, _fullness(each, asked), each.seed),
                default=None,
            )
        return min(replicas, key=lambda each: (_fullness(each, asked), each.seed), default=None)

    def _has_room(self, replica: ReplicaState, asked: Asked, exclude: Set[str]) -> bool:
        load, capacity = replica.load, replica.capacity
        share = (self._load + asked.units) / self._capacity * capacity
        return (
            replica.available
            and (load < BOUND * share or load < min(share + SIGMAS * sqrt(share), capacity) or load < FLOOR * capacity)
            and replica.id not in exclude
            and replica.has_room_for(asked.prompt_tokens)
            and not (asked.tenant and self._is_crowded(replica, asked.tenant))
        )

    def _is_level(self, replica: ReplicaState) -> bool:
        """Tell whether a replica has about its share of the load or less, or hardly any load."""
        load, capacity = replica.load, replica.capacity
        return load <= LEVEL * self._load / self._capacity * capacity or load < FLOOR * capacity

    def _is_hot(self, adapter: str, homes: set[ReplicaState]) -> bool:
        """Tell whether an adapter makes up much of the load of the replicas that have it."""
        in_flight = sum(replica.of_adapter(adapter) for replica in homes) * self._num_gateways
        return in_flight >= HOT * self._load / self._capacity * sum(replica.capacity for replica in homes)

    def _is_crowded(self, replica: ReplicaState, tenant: str) -> bool:
        """Tell whether a tenant alone would fill a replica, and has more of its requests there than elsewhere."""
        there = replica.of_tenant(tenant)
        if there < replica.capacity:
            return False
        everywhere = sum(each.of_tenant(tenant) for each in self._available)
        return there >= BOUND * (everywhere + 1) / self._capacity * replica.capacity

    # memory

    def _recount(self) -> None:
        self._available = [replica for replica in self._replicas.values() if replica.available]
        best_ramp = max((replica.age_ramp for replica in self._available), default=1.0)
        for replica in self._available:
            replica.scale(best_ramp)
        self._load = sum(replica.load for replica in self._available)
        self._capacity = sum(replica.capacity for replica in self._available)

    def _set_homes(self, replica: ReplicaState, adapters: set[str]) -> None:
        for key in replica.homes - adapters:
            homes = self._homes[key]
            homes.discard(replica)
            if not homes:
                del self._homes[key]
        for key in adapters - replica.homes:
            self._homes.setdefault(key, set()).add(replica)
        replica.homes = adapters


def _fullness(replica: ReplicaState, asked: Asked) -> float:
    """Return a replica's load divided by its capacity; for a slow replica, as if it had taken the request."""
    return (replica.load + (asked.units if replica.pace < 1.0 else 0.0)) / replica.capacity
