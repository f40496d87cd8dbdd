"""Pools of equal replicas for tests of the balancer."""

from __future__ import annotations

from typing import Any

from gateway.domain.balancing.balancer import Balancer
from gateway.domain.balancing.replica import Asked, ReplicaLoad

NOW_S = 1_000.0
CAPACITY = 64
SLOTS = 32


def names(count: int) -> list[str]:
    return [f"replica-{number}" for number in range(count)]


def picture(name: str, **fields: Any) -> ReplicaLoad:
    return ReplicaLoad(**({"id": name, "capacity": CAPACITY, "adapter_slots": SLOTS} | fields))


def balancer_over(count: int, *, seed: int = 0, **fields: Any) -> Balancer:
    """Return a balancer of `count` equal replicas, with these fields in each picture."""
    balancer = Balancer(seed=seed)
    for name in names(count):
        balancer.add(name)
        balancer.update(picture(name, **fields), NOW_S)
    return balancer


def send(balancer: Balancer, asked: Asked, exclude: frozenset[str] = frozenset()) -> str:
    """Pick a replica for a request, and count the request there. Return the replica's id."""
    replica = balancer.pick(asked, exclude)
    assert replica is not None
    balancer.taken(replica, asked)
    return replica
