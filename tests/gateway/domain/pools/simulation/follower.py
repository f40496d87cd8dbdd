"""The time that requests would wait at an ideal follower of the load, which knows nothing of the future."""

from __future__ import annotations

import heapq
import math
from collections import deque

from gateway.domain.pools.scaling import BUSY, DOWN_AFTER_S
from tests.gateway.domain.pools.simulation.site import PoolRecord

REACTION_S = 4
"""Seconds from a load to a replica that starts for it: reported, decided, planned and begun in a second each."""


def waits_s(served: PoolRecord) -> list[float]:
    """Return the seconds that each request of a pool would wait, in the order in which the requests came.

    In each second the follower has all replicas for which the load of some second asked that lies a reaction and a load
    time back, or up to `DOWN_AFTER_S` before that. It asks for `BUSY` of the places to be taken, and for one replica
    while it has none. It never has more than bounds and machines allow, less those that the pool lost and cannot have
    back yet.
    """
    bounds, most_each = served.bounds, served.most_each
    waits = [math.inf] * len(served.requests)
    queue: deque[int] = deque()
    running: list[int] = []
    asked = deque([(0, max(1, bounds.min_replicas))])  # falling numbers: the first is the highest of the window
    pending: deque[tuple[int, int]] = deque()
    place = 0
    have = 1
    for now_s, second in enumerate(served.seconds):
        while running and running[0] <= now_s:
            heapq.heappop(running)
        while place < len(waits) and served.requests[place].came_at_s == now_s:
            queue.append(place)
            place += 1
        demand = len(running) + len(queue)
        number = math.ceil(demand / (most_each * BUSY) - 1e-9) if have else min(demand, 1)
        pending.append((now_s, min(max(number, bounds.min_replicas), bounds.max_replicas)))
        until_s = now_s - REACTION_S - second.load_s
        while pending and pending[0][0] <= until_s:
            at_s, number = pending.popleft()
            while asked and asked[-1][1] <= number:
                asked.pop()
            asked.append((at_s, number))
        while len(asked) > 1 and asked[0][0] < until_s - DOWN_AFTER_S:
            asked.popleft()
        have = max(min(asked[0][1], second.num_allowed) - second.num_lost, 0)
        while queue and len(running) < have * most_each:
            index = queue.popleft()
            waits[index] = now_s - served.requests[index].came_at_s
            heapq.heappush(running, now_s + served.requests[index].takes_s)
    return waits
