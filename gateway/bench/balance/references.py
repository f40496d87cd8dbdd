"""The best hit rates: of a fixed placement under the load bound, and of a cache that knows the future."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from gateway.bench.balance.model import Arrival, SimulationParameters
from gateway.domain.balancing.balancer import BOUND


def best_static_placement(world: SimulationParameters) -> float:
    """Return an upper bound of the share of requests whose adapter is resident under any fixed placement.

    An adapter needs as many copies as its requests fill replicas, each with at most `BOUND` times the mean load. The
    most popular ones are placed until all slots are taken; whether the copies can be packed is not asked.
    """
    slots, hit_rate = world.replicas * world.slots, 0.0
    for weight in world.weights():
        slots -= math.ceil(weight * world.replicas / BOUND)
        if slots < 0:
            break
        hit_rate += weight
    return hit_rate


def belady(world: SimulationParameters, requests: Sequence[Arrival]) -> float:
    """Return the hit rate of one cache for the whole pool that evicts the adapter asked for last (Belady, 1966).

    The rate is over the second half of the requests. No policy can have more.
    """
    never = len(requests)
    next_use = [never] * len(requests)
    seen: dict[str, int] = {}
    for place in range(len(requests) - 1, -1, -1):
        next_use[place] = seen.get(requests[place].adapter, never)
        seen[requests[place].adapter] = place
    cached: dict[str, int] = {}
    latest: list[tuple[int, str]] = []
    hits = 0
    for place, arrival in enumerate(requests):
        key = arrival.adapter
        if key in cached:
            hits += place >= never // 2
        elif len(cached) == world.replicas * world.slots:
            while True:
                use, evicted = heapq.heappop(latest)
                if cached.get(evicted) == -use:
                    del cached[evicted]
                    break
        cached[key] = next_use[place]
        heapq.heappush(latest, (-next_use[place], key))
    return hits / (never - never // 2)
