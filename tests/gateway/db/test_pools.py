"""Promises of the rows of pools: one name, revisions that never change, and replicas that only the host's agent
moves."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import pytest

from gateway.db.organization.organizations import ensure_organization
from gateway.db.pool import FAILURES, Database
from gateway.db.pools import hosts, planning, pools, replicas, revisions
from gateway.db.pools.planning import plan_pools
from gateway.db.pools.served import list_served, switch_revision
from gateway.domain.pools.plan import Create
from gateway.pools.first_pool import ensure_first_pool, make_pool
from tests.installation.waiting import until

if TYPE_CHECKING:
    from gateway.db.pool import Connection

DIGEST = "b" * 64
LEASE = datetime.timedelta(seconds=30)


@pytest.fixture
async def conn(database: Database) -> AsyncIterator[Connection]:
    async with database.acquire() as connection:
        yield connection


async def make_pool_row(conn: Connection, name: str = "tiny", *, num_replicas: int = 1) -> pools.PoolRow:
    async with conn.transaction():
        assert await make_pool(
            conn, name, model="demo", folder=Path("/models/tiny"), base_digest=DIGEST, num_replicas=num_replicas
        )
    organization = await ensure_organization(conn, "default")
    pool = await pools.find_pool(conn, organization.id, name)
    assert pool is not None
    return pool


async def make_host(conn: Connection) -> int:
    generation = await hosts.claim_host(conn, "host_1", "one", lease=LEASE, num_processors=2, memory_bytes=1 << 30)
    assert generation is not None
    return generation


async def test_a_name_is_one_pools_until_that_is_removed(conn: Connection) -> None:
    pool = await make_pool_row(conn)
    async with conn.transaction():
        assert not await make_pool(conn, "tiny", model="demo", folder=Path("/other"), base_digest=DIGEST)
    await pools.remove_pool(conn, pool.id)
    assert (await make_pool_row(conn)).id != pool.id


async def test_the_environments_pool_is_made_once_and_never_again(conn: Connection) -> None:
    made = [
        await ensure_first_pool(
            conn, "tiny", model="demo", folder=Path("/m"), base_digest=DIGEST, address="ipc:///run/engine.sock"
        )
        for _ in range(2)
    ]
    assert made == [True, False]
    [served] = await list_served(conn)
    assert (served.row.revision, served.row.wanted_revision, served.row.num_replicas) == (1, 1, 0)
    assert [(each.address, each.state, each.host_id) for each in served.replicas] == [
        ("ipc:///run/engine.sock", "ready", None)
    ]
    await pools.remove_pool(conn, served.row.id)
    await replicas.drain_replicas(conn, [served.replicas[0].id], "removed")
    assert await list_served(conn) == []
    assert not await ensure_first_pool(conn, "tiny", model="demo", folder=Path("/m"), base_digest=DIGEST)


async def test_a_revision_never_changes(conn: Connection) -> None:
    pool = await make_pool_row(conn)
    second = await revisions.add_revision(conn, pool.id, "hub/model", {"max_num_seqs": "8"})
    assert (second.revision, second.settings, second.state) == (2, {"max_num_seqs": "8"}, "preparing")
    with pytest.raises(asyncpg.RaiseError, match="revision 2 of pool"):
        await conn.execute("UPDATE pool_revisions SET model = 'other' WHERE revision = 2")
    await revisions.set_prepared(conn, pool.id, 2, folder="/models/2", base_digest=DIGEST, num_bytes=5)
    with pytest.raises(asyncpg.RaiseError, match="never changes"):
        await conn.execute(f"UPDATE pool_revisions SET base_digest = '{'c' * 64}' WHERE revision = 2")
    assert (await revisions.list_revisions(conn, pool.id))[0].state == "prepared"


async def test_a_pool_switches_to_the_revision_that_is_wanted_and_to_no_other(conn: Connection) -> None:
    pool = await make_pool_row(conn)
    assert await switch_revision(conn, pool.id, 1)
    assert not await switch_revision(conn, pool.id, 1)
    await revisions.add_revision(conn, pool.id, "demo", {})
    assert not await switch_revision(conn, pool.id, 2), "nobody wants it yet"
    await pools.want_revision(conn, pool.id, 2)
    assert await switch_revision(conn, pool.id, 2)


async def test_a_host_with_replicas_cannot_be_claimed_with_another_placement(conn: Connection) -> None:
    pool, first = await make_pool_row(conn), await make_host(conn)
    replica = await replicas.create_replica(conn, pool.id, 1, host_id="host_1")

    async def claim() -> int | None:
        return await hosts.claim_host(
            conn, "host_1", "one", lease=LEASE, num_processors=2, memory_bytes=1, force=True, placement="ray"
        )

    assert await claim() is None
    assert await hosts.runs_elsewhere(conn, "host_1", "ray")
    assert not await hosts.runs_elsewhere(conn, "host_1", "local")
    await conn.execute("UPDATE replicas SET state = 'stopped' WHERE id = $1", replica.id)
    assert await claim() == first + 1


async def test_a_host_has_one_agent_and_writes_of_the_former_agent_are_refused(conn: Connection) -> None:
    pool, first = await make_pool_row(conn), await make_host(conn)
    assert await hosts.claim_host(conn, "host_1", "one", lease=LEASE, num_processors=2, memory_bytes=1) is None
    replica = await replicas.create_replica(conn, pool.id, 1, host_id="host_1")
    assert await replicas.begin_start(conn, replica.id, first, address="ipc:///a") == 1
    await conn.execute("UPDATE hosts SET lease_until = now() - interval '1 s'")
    second = await make_host(conn)
    assert second == first + 1
    assert not await hosts.renew_host(conn, "host_1", first, LEASE)
    assert not await replicas.move_replica(conn, replica.id, first, 1, "ready")
    assert await replicas.begin_start(conn, replica.id, first, address="ipc:///b") is None
    assert await replicas.move_replica(conn, replica.id, second, 1, "ready")


async def test_a_replica_is_started_once_a_generation_and_moves_only_forward(conn: Connection) -> None:
    pool, host = await make_pool_row(conn), await make_host(conn)
    replica = await replicas.create_replica(conn, pool.id, 1, host_id="host_1")
    assert await replicas.begin_start(conn, replica.id, host, address="ipc:///a") == 1
    assert await replicas.begin_start(conn, replica.id, host, address="ipc:///a") is None, "its process runs"
    wait = datetime.timedelta(seconds=1)
    assert await replicas.move_replica(conn, replica.id, host, 1, "failed", "it ended", retry_after=wait)
    assert await replicas.begin_start(conn, replica.id, host, address="ipc:///a") == 2
    assert not await replicas.move_replica(conn, replica.id, host, 1, "ready"), "an older start speaks"
    assert await replicas.move_replica(conn, replica.id, host, 2, "ready")
    await replicas.drain_replicas(conn, [replica.id], "scaled down")
    assert not await replicas.move_replica(conn, replica.id, host, 2, "ready"), "it drains"
    assert await replicas.move_replica(conn, replica.id, host, 2, "stopped")
    with pytest.raises(asyncpg.RaiseError, match="was stopped"):
        await conn.execute("UPDATE replicas SET state = 'ready'")


async def test_failures_are_counted_until_a_replica_is_ready(conn: Connection) -> None:
    pool, host = await make_pool_row(conn), await make_host(conn)
    replica = await replicas.create_replica(conn, pool.id, 1, host_id="host_1")
    for failures in (1, 2):
        generation = await replicas.begin_start(conn, replica.id, host, address="ipc:///a")
        assert generation is not None
        await replicas.move_replica(conn, replica.id, host, generation, "failed", "out of memory")
        [found] = await replicas.list_all_replicas(conn, [pool.id])
        assert (found.num_failures, found.why) == (failures, "out of memory")
        assert found.retry_at is not None
    generation = await replicas.begin_start(conn, replica.id, host, address="ipc:///a")
    assert generation == 3
    await replicas.move_replica(conn, replica.id, host, 3, "ready")
    [found] = await replicas.list_all_replicas(conn, [pool.id])
    assert (found.num_failures, found.retry_at) == (0, None)


async def test_gateways_read_all_pools_with_their_grants_at_once(conn: Connection) -> None:
    pool = await make_pool_row(conn)
    await make_pool_row(conn, "other")
    grants = [pools.Grant(pool.organization_id, None)]
    await pools.set_access(conn, pool.id, "listed", grants)
    served = {each.row.name: each for each in await list_served(conn)}
    assert (served["tiny"].row.access, served["tiny"].grants) == ("listed", grants)
    assert (served["other"].row.access, served["other"].grants) == ("all", [])
    assert served["other"].revisions[1].folder == "/models/tiny"


async def test_changes_of_pools_and_replicas_are_announced_and_leases_are_not(conn: Connection) -> None:
    async def version() -> int:
        found: int = await conn.fetchval("SELECT change_version FROM installation")
        return found

    pool, host = await make_pool_row(conn), await make_host(conn)
    replica = await replicas.create_replica(conn, pool.id, 1, host_id="host_1")
    before = await version()
    await hosts.renew_host(conn, "host_1", host, LEASE)
    assert await version() == before
    await replicas.begin_start(conn, replica.id, host, address="ipc:///a")
    await replicas.move_replica(conn, replica.id, host, 1, "ready")
    await replicas.replace_replicas(conn, [replica.id])
    await pools.scale_pool(conn, pool.id, 2)
    assert await version() == before + 4


async def test_a_replica_whose_agent_was_stopped_waits_for_the_next_one_without_a_failure(conn: Connection) -> None:
    pool, host = await make_pool_row(conn), await make_host(conn)
    replica = await replicas.create_replica(conn, pool.id, 1, host_id="host_1")
    assert await replicas.begin_start(conn, replica.id, host, address="ipc:///a") == 1
    assert not await replicas.await_start(conn, replica.id, host - 1, 1, "of an agent before")
    assert await replicas.await_start(conn, replica.id, host, 1, "its agent was stopped")
    [found] = await replicas.list_all_replicas(conn, [pool.id])
    assert (found.state, found.num_failures, found.why) == ("starting", 0, "its agent was stopped")
    assert await replicas.begin_start(conn, replica.id, host, address="ipc:///b") == 2


async def test_a_row_says_since_when_its_replica_waits_for_room(conn: Connection) -> None:
    pool, host = await make_pool_row(conn), await make_host(conn)
    replica = await replicas.create_replica(conn, pool.id, 1, host_id="host_1")

    async def full_since() -> datetime.datetime | None:
        [found] = await replicas.list_all_replicas(conn, [pool.id])
        return found.full_since

    assert await replicas.await_start(conn, replica.id, host, 0, "nodes are full", is_full=True)
    first = await full_since()
    assert first is not None
    assert await replicas.await_start(conn, replica.id, host, 0, "nodes are full still", is_full=True)
    assert await full_since() == first
    assert await replicas.await_start(conn, replica.id, host, 0, "the cluster is away")
    assert await full_since() is None
    assert await replicas.await_start(conn, replica.id, host, 0, "nodes are full", is_full=True)
    await replicas.begin_start(conn, replica.id, host, address="ipc:///a")
    assert await full_since() is None


async def test_only_an_agent_that_has_its_host_plans_and_one_at_a_time(conn: Connection, database: Database) -> None:
    pool, host = await make_pool_row(conn, num_replicas=2), await make_host(conn)
    assert await plan_pools(conn, "host_1", host - 1) == []
    async with database.transaction() as other:
        await other.execute("SELECT pg_advisory_xact_lock($1)", planning._LOCK_KEY)
        assert await plan_pools(conn, "host_1", host) == []
    assert [type(each) for each in await plan_pools(conn, "host_1", host)] == [Create, Create]
    assert len(await replicas.list_all_replicas(conn, [pool.id])) == 2
    assert await plan_pools(conn, "host_1", host) == []


async def test_a_planner_that_stops_in_the_midst_is_ended_with_all_that_it_decided(
    conn: Connection, database: Database
) -> None:
    pool, host = await make_pool_row(conn), await make_host(conn)
    async with database.acquire() as frozen:
        transaction = frozen.transaction()
        await transaction.start()
        await frozen.execute(planning._END_WITH_ITS_AGENT)
        await frozen.execute("SELECT pg_advisory_xact_lock($1)", planning._LOCK_KEY)
        await replicas.create_replica(frozen, pool.id, 1, host_id="host_1")

        async def planned() -> bool:
            return bool(await plan_pools(conn, "host_1", host))

        await until(planned)
        with pytest.raises(FAILURES):
            await frozen.execute("SELECT 1")
    assert len(await replicas.list_all_replicas(conn, [pool.id])) == 1


async def test_a_pool_is_switched_and_led_back_by_the_planner(conn: Connection) -> None:
    pool, host = await make_pool_row(conn), await make_host(conn)
    await plan_pools(conn, "host_1", host)
    [replica] = await replicas.list_all_replicas(conn, [pool.id])
    assert await replicas.begin_start(conn, replica.id, host, address="ipc:///a") == 1
    await replicas.move_replica(conn, replica.id, host, 1, "ready")
    await plan_pools(conn, "host_1", host)
    await revisions.add_revision(conn, pool.id, "hub/model", {})
    await pools.want_revision(conn, pool.id, 2)
    await revisions.set_revision_state(conn, pool.id, 2, "failed", "no hub")
    await plan_pools(conn, "host_1", host)
    [served] = await list_served(conn)
    assert (served.row.revision, served.row.wanted_revision) == (1, 1)


async def test_a_failed_revision_is_tried_again_only_where_nothing_else_serves(conn: Connection) -> None:
    first, other = await make_pool_row(conn), await make_pool_row(conn, "other")
    await switch_revision(conn, other.id, 1)
    for pool in (first, other):
        await revisions.set_revision_state(conn, pool.id, 1, "failed", "no hub")
    await revisions.prepare_again(conn)
    assert [(await revisions.list_revisions(conn, pool.id))[-1].state for pool in (first, other)] == [
        "preparing",
        "failed",
    ]
