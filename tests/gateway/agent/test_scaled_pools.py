"""One agent and a pool whose number of replicas follows its load, as gateways tell it."""

from __future__ import annotations

from gateway.db.pools import pools
from gateway.db.pools.scaling_rows import report_loads, set_scaling
from gateway.domain.pools.scaling import Bounds, Load
from tests.gateway.agent.site import Host
from tests.installation.waiting import until


async def test_a_pool_runs_nothing_until_a_request_waits_and_more_when_that_is_not_enough(host: Host) -> None:
    pool = await host.pool(host.model(), num_replicas=0)
    async with host.database.transaction() as conn:
        await pools.lock_pool_by_id(conn, pool.organization_id, pool.id)
        await set_scaling(conn, pool.id, Bounds(0, 2))
    host.agent()

    async def serves() -> bool:
        served = await host.served()
        return served is not None and served.row.revision == 1

    await until(serves, host.log)
    assert await host.replicas() == [] and host.pids() == []

    async def tell(load: Load) -> None:
        async with host.database.acquire() as conn:
            await report_loads(conn, "gateway_1", {pool.id: load}, [pool.id])

    await tell(Load(num_held=1000, idle_s=0.0))
    [first] = await host.ready()
    assert first.generation == 1
    await tell(Load(num_ready=1, places=4, num_running=4, num_waiting=9, oldest_wait_s=3.0, idle_s=0.0))
    assert first.id in {each.id for each in await host.ready(2)}
