"""Reports to agents the load of pools whose number of replicas follows it, as this gateway sees the pools."""

from __future__ import annotations

import time

from gateway.backends.load import load_of
from gateway.backends.pool import Pool
from gateway.db.pool import Database
from gateway.db.pools.scaling_rows import report_loads
from gateway.domain.pools.scaling import Load
from gateway.pools.live import LivePools
from gateway.support.worker import Worker

REPORT_EVERY_S = 1.0
UNCHANGED_EVERY_S = 4.0
"""Seconds after which an unchanged load is reported again."""


class PoolLoads(Worker):
    """The worker that reports loads between `start` and `stop`. A gateway process has one."""

    def __init__(self, database: Database, pools: LivePools, gateway_id: str) -> None:
        super().__init__(self._step, REPORT_EVERY_S, name="loads of pools", wake=pools.rooms.awaited)
        self._database = database
        self._pools = pools
        self._gateway_id = gateway_id
        self._reported: dict[str, tuple[Load, float]] = {}

    async def _step(self) -> None:
        now_s, loads, awaited = time.monotonic(), dict[str, Load](), list[str]()
        pools = self._pools.scaled
        for pool_id, pool in pools.items():
            load = load_of(pool, now_s)
            before, reported_s = self._reported.get(pool_id, (None, 0.0))
            is_asleep = not load.num_held and not _may_run(pool)
            if is_asleep and before is None:
                continue
            if _is_news(before, load) or now_s - reported_s >= UNCHANGED_EVERY_S:
                loads[pool_id] = load
            if load.num_held and not (before is not None and before.num_held):
                awaited.append(pool_id)
        if loads:
            async with self._database.acquire() as conn:
                await report_loads(conn, self._gateway_id, loads, awaited)
        self._reported |= {pool_id: (load, now_s) for pool_id, load in loads.items()}
        asleep = [
            id
            for id in self._reported
            if id not in pools or not (_may_run(pools[id]) or self._reported[id][0].num_held)
        ]
        for pool_id in asleep:
            del self._reported[pool_id]


def _may_run(pool: Pool) -> bool:
    """Tell whether a pool has replicas or wants some.

    A pool whose replicas cannot start counts, too: it wants one until its load changes that.
    """
    return bool(pool.replicas) or pool.num_wanted > 0


def _is_news(before: Load | None, load: Load) -> bool:
    """Tell whether a load differs from the reported one by more than the time since the last request.

    before: the load as it was reported; None: it never was.
    """
    if before is None:
        return True
    return (before.num_held, before.num_running, before.num_waiting, before.num_own, before.num_ready) != (
        load.num_held,
        load.num_running,
        load.num_waiting,
        load.num_own,
        load.num_ready,
    )
