"""One run of a site with two pools through bursts, ramps, losses and slow loads, all drawn from a seed."""

from __future__ import annotations

import numpy as np

from gateway.domain.pools.capacity import Host, Needs
from gateway.domain.pools.scaling import Bounds, decide
from tests.gateway.domain.pools.simulation import demand
from tests.gateway.domain.pools.simulation.site import GIB, Decide, Machine, PoolRecord, Site

NUM_MACHINES = 6
REPLICA_GIB = 4
LOSS_EVERY_S = 7200
KILL_EVERY_S = 1800
SLOW_EVERY_S = 10_000


def simulate_site(seed: int, num_steps: int, decide: Decide = decide) -> list[PoolRecord]:
    """Simulate two pools on six machines for a number of seconds, and return them.

    The second pool runs on half of the machines alone, and excludes one of these.
    """
    rng = np.random.default_rng(seed)
    load_s = _load_times(rng, num_steps)
    machines = [
        Machine(
            Host(
                f"host_{place}",
                f"host {place}",
                True,
                int(rng.integers(3, 7)) * REPLICA_GIB * GIB,
                labels={"zone": "ab"[place % 2], "disk": "hdd" if place == 2 else "ssd"},
            )
        )
        for place in range(NUM_MACHINES)
    ]
    wholes = Needs(REPLICA_GIB * GIB), Needs(REPLICA_GIB * GIB, labels={"zone": "a"}, excluded={"disk": ["hdd"]})
    pools, coming = [], []
    for place, needs in enumerate(wholes):
        service_s, most = float(rng.choice([3, 8, 20])), int(rng.integers(4, 13))
        served = PoolRecord(
            f"pool_{place}",
            Bounds(int(rng.integers(0, 2)), most),
            needs,
            places=8,
            kv_places=float(rng.choice([99, 6.5])),
            num_replicas=1,
        )
        pools.append(served)
        per_second = demand.rates(rng, num_steps, most * served.most_each * 0.75, service_s)
        coming.append(demand.arrivals(rng, per_second, service_s))
    site = Site(machines, pools, lambda now_s: load_s[now_s], decide)
    back_at_s: dict[str, int] = {}
    for now_s in range(num_steps):
        _fail(rng, site, back_at_s, now_s)
        site.step([next(each) for each in coming])
    return pools


def _load_times(rng: np.random.Generator, num_steps: int) -> list[int]:
    """Return the seconds that an engine takes to load, by the second of its start: at first 0, and at times long."""
    usual = int(rng.choice([10, 30, 60, 120]))
    load_s = np.full(num_steps, usual)
    for _ in range(num_steps // SLOW_EVERY_S + 1):
        begin = int(rng.integers(0, num_steps))
        load_s[begin : begin + int(rng.integers(600, 3000))] = usual * int(rng.integers(2, 4))
    load_s[:5] = 0
    return [int(each) for each in load_s]


def _fail(rng: np.random.Generator, site: Site, back_at_s: dict[str, int], now_s: int) -> None:
    """Remove a machine or an engine, seldom, and bring machines back after half a minute to 40 minutes."""
    if rng.random() < 1 / LOSS_EVERY_S:
        up = [each for each in site.machines.values() if each.is_up]
        if len(up) > NUM_MACHINES // 2:
            host_id = up[int(rng.integers(len(up)))].host.id
            site.lose(host_id)
            back_at_s[host_id] = now_s + int(rng.integers(20, 2400))
    for host_id in [host_id for host_id, at_s in back_at_s.items() if at_s <= now_s]:
        site.bring_back(host_id)
        del back_at_s[host_id]
    if rng.random() < 1 / KILL_EVERY_S:
        served = site.pools[int(rng.integers(len(site.pools)))]
        ready = [each.id for each in served.serving(site.is_up)]
        if ready:
            site.kill(served, ready[int(rng.integers(len(ready)))])
