"""The fewest replicas with which a pool could have been served by an autoscaler that knows the future."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gateway.domain.pools.scaling import BUSY, COOL_DOWN_S, DOWN_AFTER_S, STEP_S
from tests.gateway.domain.pools.simulation.site import PoolRecord

Numbers = npt.NDArray[np.int64]

_NEVER = 1 << 60


def replica_seconds(served: PoolRecord) -> int:
    """Return the fewest replica-seconds, loading included, with which a pool could have been served.

    The oracle knows all requests to come, all load times, and what bounds and machines allow in each second. It has as
    many ready replicas in each second as the product aims at: no request ever waits, and at most `BUSY` of the places
    are taken. It loses no replica. It may move as the product may: any number comes at once, one goes at a time, and
    never two opposite ways within the cool-down (`fewest`). It has the cheapest of all such plans.
    """
    num_steps, most = len(served.seconds), served.bounds.max_replicas
    ready = needs(served, num_steps)
    allowed = np.array([min(each.num_allowed, most) for each in served.seconds], dtype=np.int64)
    ready = np.minimum(np.maximum(ready, served.bounds.min_replicas), allowed)
    return fewest(in_time(ready, [each.load_s for each in served.seconds]), most)


def needs(served: PoolRecord, num_steps: int) -> Numbers:
    """Return the number of ready replicas for each second so that no request waits, with at most `BUSY` of places in
    use.
    """
    running = np.zeros(num_steps + 1, dtype=np.int64)
    for each in served.requests:
        running[each.came_at_s] += 1
        running[min(each.came_at_s + each.takes_s, num_steps)] -= 1
    return np.ceil(np.cumsum(running)[:-1] / (served.most_each * BUSY) - 1e-9).astype(np.int64)


def in_time(ready: Numbers, load_s: Sequence[int]) -> Numbers:
    """Return the number of replicas, loading or ready, so that `ready` many are ready in each second.

    load_s: seconds that a replica loads, by the second of its start.
    """
    wanted = ready.copy()
    latest = 0
    for second in range(len(ready)):
        while latest < second and latest + 1 + load_s[latest + 1] <= second:
            latest += 1  # the latest start with which a replica is ready now
        np.maximum(wanted[latest : second + 1], ready[second], out=wanted[latest : second + 1])
    return wanted


def fewest(wanted: Numbers, most: int) -> int:
    """Return the fewest replica-seconds with which at least `wanted` replicas run in each second.

    They are found by dynamic programming over the number of replicas and the seconds until the next change is
    allowed. The number at first is free. No replica goes within `DOWN_AFTER_S` of one that came; none comes within
    `COOL_DOWN_S` of one that went, and none goes within `STEP_S` of it.
    """
    after_down = int(max(COOL_DOWN_S, STEP_S))
    number = np.arange(most + 1)
    up = np.full((DOWN_AFTER_S, most + 1), _NEVER)  # [seconds left in which none may go, replicas]: any may come
    down = np.full((after_down, most + 1), _NEVER)  # [seconds left in which none may come or go, replicas]
    up[0] = 0
    for least in wanted.tolist():
        come = np.minimum.accumulate(np.minimum(up.min(axis=0), down[0]))  # from so many replicas or fewer
        free = np.minimum(up[0], down[0])
        for each in (up, down):
            each[0] = np.minimum(each[0], each[1])
            each[1:-1] = each[2:]
        up[-1, 0], up[-1, 1:] = _NEVER, come[:-1]
        down[-1, -1], down[-1, :-1] = _NEVER, free[1:]
        for each in (up, down):
            each += number
            each[:, :least] = _NEVER
    return int(min(up.min(), down.min()))
