"""Nodes and heads of Ray are lost: engines that live serve on, those that do not start elsewhere, none runs twice."""

from __future__ import annotations

import asyncio
import time

import pytest

from gateway.db.pools.hosts import list_hosts
from gateway.db.pools.pools import exclude_hosts
from gateway.domain.pools.capacity import Node
from tests.gateway.agent.ray.nodes import NODE_BYTES, Nodes, RayHost, needs_ray
from tests.installation.waiting import until

pytestmark = needs_ray

ELSEWHERE_S = 20.0


async def node_of(host: RayHost, pid: int) -> str:
    return next(name for name in ("a", "b") if pid in host.pids_on(name))


async def wait_for_generations(host: RayHost, *generations: int) -> None:
    """Wait until the pool's ready replicas have exactly these generations."""

    async def are() -> bool:
        rows = await host.replicas()
        return all(row.state == "ready" for row in rows) and sorted(row.generation for row in rows) == [*generations]

    await until(are, host.log)


async def test_an_engine_whose_node_ray_has_lost_serves_on_and_is_adopted_when_the_node_is_back(host: RayHost) -> None:
    await host.pool(host.model())
    host.agent()
    [before] = await host.ready()
    [pid] = host.pids()
    name = await node_of(host, pid)
    await asyncio.to_thread(host.nodes.kill, name)
    await asyncio.sleep(12.0)  # longer than it takes to give up an engine that does not answer either
    await asyncio.to_thread(host.nodes.rejoin, name)
    await asyncio.sleep(6.0)
    [after] = await host.ready()
    assert (after.generation, after.since, host.pids()) == (1, before.since, [pid])
    host.kill(pid)
    await wait_for_generations(host, 2)
    assert len(host.pids()) == 1


async def test_the_replicas_of_a_machine_that_is_lost_start_elsewhere_and_the_others_are_not_touched(
    host: RayHost,
) -> None:
    await host.pool(host.model(), num_replicas=2)
    host.agent()
    before = {row.address: row for row in await host.ready(2)}
    assert len(host.pids_on("a")) == len(host.pids_on("b")) == 1, "they are spread"
    [kept] = host.pids_on("b")
    [lost] = host.pids_on("a")
    host.kill(lost)  # with the whole machine
    await asyncio.to_thread(host.nodes.kill, "a")
    await asyncio.to_thread(host.nodes.await_loss)
    begun_s = time.monotonic()
    await wait_for_generations(host, 1, 2)
    took_s = time.monotonic() - begun_s
    print(f"elsewhere {took_s:.1f} s after Ray noticed the loss of its node")
    untouched = next(row for row in await host.ready(2) if row.generation == 1)
    assert before[untouched.address] == untouched and kept in host.pids() and len(host.pids_on("b")) == 2
    await asyncio.to_thread(host.nodes.rejoin, "a")
    assert took_s < ELSEWHERE_S


async def test_the_former_engine_of_a_replica_that_was_started_elsewhere_is_ended_when_it_is_seen_again(
    host: RayHost,
) -> None:
    await host.pool(host.model())
    host.agent()
    await host.ready()
    [pid] = host.pids()
    name = await node_of(host, pid)
    await asyncio.to_thread(host.nodes.kill, name)
    with host.paused(pid):  # as one that is cut off from everybody, and does not end
        await wait_for_generations(host, 2)
        assert len(host.pids()) == 2
    await asyncio.to_thread(host.nodes.rejoin, name)

    async def is_ended() -> bool:
        return pid not in host.pids()

    await until(is_ended, host.log)
    [row] = await host.ready()
    assert (row.generation, len(host.pids())) == (2, 1)


async def test_a_lost_head_costs_no_engine_and_its_successor_adopts_all(host: RayHost) -> None:
    pool = await host.pool(host.model(), num_replicas=2)
    agent = host.agent()
    before = await host.ready(2)
    pids = host.pids()
    await asyncio.to_thread(host.nodes.kill_head)
    await asyncio.sleep(8.0)
    agent.kill()  # its successor has never seen the cluster
    host.agent()
    await asyncio.sleep(8.0)
    assert (await host.ready(2), host.pids()) == (before, pids)
    await asyncio.to_thread(host.nodes.start_head)
    for name in ("a", "b"):
        await asyncio.to_thread(host.nodes.rejoin, name)
    await host.scale(pool, 3)
    after = await host.ready(3)
    assert {row.id: row for row in after}.items() >= {row.id: row for row in before}.items()
    assert set(host.pids()) > set(pids)
    host.kill(pids[0])
    await wait_for_generations(host, 1, 1, 2)


async def test_a_replica_for_which_no_node_is_large_enough_says_so_and_starts_when_one_joins(
    host: RayHost, nodes: Nodes
) -> None:
    host.variables["LORIKEET_NUM_THREADS"] = "5"
    await host.pool(host.model())
    host.agent()

    async def why() -> str:
        return next((row.why for row in await host.replicas() if "even when empty" in row.why), "")

    said = await until(why, host.log)
    assert said.startswith("no node of the Ray cluster has room for it even when empty: it needs 5 CPU and ")
    assert said.endswith("and the most is 2 CPU and 8.0 GiB of memory")
    await asyncio.to_thread(nodes.add, "large", num_cpus=6)
    try:
        await host.ready()
        assert len(host.pids_on("large")) == 1
    finally:
        for pid in host.pids():
            host.kill(pid)
        await asyncio.to_thread(nodes.kill, "large")


async def test_replicas_follow_the_labels_that_a_pool_excludes_and_the_host_row_lists_the_nodes(
    host: RayHost, nodes: Nodes
) -> None:
    host.variables["LORIKEET_NUM_THREADS"] = "5"
    pool = await host.pool(host.model())
    async with host.database.acquire() as conn:
        await exclude_hosts(conn, pool.id, {"zone": ["west", "north"]})
    await asyncio.to_thread(nodes.add, "west", num_cpus=6, labels={"zone": "west"})
    host.agent()

    async def waits() -> bool:
        return any("and the most is 2 CPU" in row.why for row in await host.replicas())

    async def told() -> list[Node]:
        async with host.database.acquire() as conn:
            [row] = await list_hosts(conn)
        return [each for each in row.nodes if each.labels]

    await until(waits, host.log)
    [west] = await until(told, host.log)
    assert (west.labels, west.memory_bytes) == ({"zone": "west"}, NODE_BYTES)
    await asyncio.to_thread(nodes.add, "east", num_cpus=6, labels={"zone": "east"})
    try:
        [row] = await host.ready()
        assert len(host.pids_on("east")) == 1 and host.pids_on("west") == []
        assert row.address is not None
        address = row.address.removeprefix("tcp://").rpartition(":")[0]

        async def is_told() -> bool:
            return address in {each.address for each in await told()}

        await until(is_told, host.log)
        async with host.database.acquire() as conn:
            await exclude_hosts(conn, pool.id, {"zone": ["east"]})

        async def has_moved() -> bool:
            return len(host.pids_on("west")) == 1 and len(await host.replicas()) == 1

        await until(has_moved, host.log)
        assert [each.id for each in await host.ready()] != [row.id]
    finally:
        for pid in host.pids():
            host.kill(pid)
        for name in ("west", "east"):
            await asyncio.to_thread(nodes.kill, name)


@pytest.mark.parametrize("address", ["127.0.0.1:1"])
async def test_replicas_that_wait_for_an_unreachable_cluster_say_so(host: RayHost, address: str) -> None:
    host.variables["LORIKEET_RAY_ADDRESS"] = address
    await host.pool(host.model())
    host.agent()

    async def why() -> str:
        return next((row.why for row in await host.replicas() if "cannot be reached" in row.why), "")

    assert (await until(why, host.log)).startswith(f"the Ray cluster ({address}) cannot be reached: ")
