"""Pools whose number of replicas follows their load, in the database: decided by one agent, recorded, and shown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from gateway.db.pool import Database
from gateway.db.pools.scaling import ReplicaCountChange, scale_pools
from gateway.db.pools.scaling_rows import clear_scaling, report_loads, set_scaling
from gateway.domain.pools.scaling import Bounds, Load
from tests.gateway.pools.acting_agent import Agent
from tests.installation.waiting import until

POOL = {"name": "tiny", "model": "demo", "scaling": {"min_replicas": 0, "max_replicas": 4}}
BUSY = Load(num_ready=1, places=8, num_running=8, num_waiting=20, oldest_wait_s=3.0, idle_s=0.0)


@pytest.fixture
async def agent(database: Database) -> Agent:
    agent = Agent(database)
    await agent.claim()
    return agent


async def decide_scaling(
    database: Database, agent: Agent, load: Load | None = None, pool_id: str = ""
) -> list[ReplicaCountChange]:
    """Report a load as a gateway does, have the agent decide, and return the changes of pools.

    load: None: no load is reported. pool_id: the pool of the load.
    """
    async with database.acquire() as conn:
        if load is not None:
            await report_loads(conn, "gateway_1", {pool_id: load})
        return await scale_pools(conn, agent.host_id, agent.generation)


async def make_pool(operator: httpx.AsyncClient, agent: Agent, **changes: Any) -> str:
    reply = await operator.post("/pools", json=POOL | changes)
    assert reply.status_code == 200, reply.text
    pool_id: str = reply.json()["id"]
    await agent.prepare(pool_id)
    return pool_id


async def read_pool(operator: httpx.AsyncClient, pool_id: str) -> dict[str, Any]:
    found: dict[str, Any] = (await operator.get(f"/pools/{pool_id}")).json()
    return found


async def test_replicas_come_with_the_load_by_the_decision_of_one_agent_and_the_reason_is_kept(
    operator: httpx.AsyncClient, database: Database, agent: Agent
) -> None:
    pool_id = await make_pool(operator, agent, scaling={"min_replicas": 1, "max_replicas": 4})
    await agent.start(pool_id)
    [change] = await decide_scaling(database, agent, BUSY, pool_id)
    assert (change.before, change.after) == (1, 4)
    found = await read_pool(operator, pool_id)
    assert found["num_replicas"] == 4
    assert found["scaling"]["why"] == change.why and "20 wait" in change.why
    assert "about to be ready" in found["scaling"]["outlook"]
    [log] = [
        each
        for each in (await operator.get("/audit_logs")).json()["data"]
        if each["type"] == "pool.scaled" and each["actor"]["type"] == "system"
    ]
    assert log["id"] and "20 wait" in str(log)
    assert await decide_scaling(database, agent) == [], "as many as the pool may run are wanted"
    await operator.post(f"/pools/{pool_id}", json={"scaling": None, "num_replicas": 3})
    await operator.post(f"/pools/{pool_id}", json={"access": "all"})
    [last, first] = (await operator.get(f"/pools/{pool_id}/scalings")).json()["data"]
    assert (last["before"], last["after"], last["by"], last["why"]) == (4, 3, "operator", "")
    assert (first["before"], first["after"], first["by"], first["why"]) == (1, 4, "autoscaler", change.why)
    assert first["id"] == log["id"] and first["at"] <= last["at"]
    other = Agent(database, "host_2", "gpu-2")
    async with database.acquire() as conn:
        assert await scale_pools(conn, other.host_id, 7) == [], "it holds no lease"


async def test_a_pool_without_replicas_gets_one_when_a_gateway_holds_a_request(
    operator: httpx.AsyncClient, database: Database, agent: Agent
) -> None:
    pool_id = await make_pool(operator, agent)
    await agent.serve(pool_id)
    found = await read_pool(operator, pool_id)
    assert (found["num_replicas"], found["state"]) == (0, "stopped")
    assert "the next one" in found["why"]
    assert await decide_scaling(database, agent) == []
    [change] = await decide_scaling(database, agent, Load(num_held=300, idle_s=0.0), pool_id)
    assert (change.before, change.after) == (0, 1)
    await agent.start(pool_id)
    await decide_scaling(database, agent)
    assert (await read_pool(operator, pool_id))["scaling"]["start_seconds"] >= 0


async def test_an_operator_changes_and_removes_the_bounds_and_a_drained_pool_stays_drained(
    operator: httpx.AsyncClient, database: Database, agent: Agent
) -> None:
    pool_id = await make_pool(operator, agent)
    bounds = {"min_replicas": 2, "max_replicas": 3, "down_after_seconds": 60}
    changed = (await operator.post(f"/pools/{pool_id}", json={"scaling": bounds})).json()
    assert changed["num_replicas"] == 2 and changed["scaling"]["down_after_seconds"] == 60
    assert (await operator.post(f"/pools/{pool_id}", json={"num_replicas": 3})).json()["num_replicas"] == 3
    freed = (await operator.post(f"/pools/{pool_id}", json={"scaling": None, "num_replicas": 7})).json()
    assert (freed["scaling"], freed["num_replicas"]) == (None, 7)
    await operator.post(f"/pools/{pool_id}", json={"scaling": bounds})
    drained = (await operator.post(f"/pools/{pool_id}/drain")).json()
    assert (drained["scaling"], drained["num_replicas"]) == (None, 0)
    assert await decide_scaling(database, agent, Load(num_held=3), pool_id) == []
    types = [each["type"] for each in (await operator.get("/audit_logs")).json()["data"]]
    assert types.count("pool.scaled") == 4


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"scaling": {"min_replicas": 3, "max_replicas": 2}}, "scaling.min_replicas"),
        ({"scaling": {"max_replicas": 0}}, "scaling.max_replicas"),
        ({"scaling": {"min_replicas": 1}}, "scaling.max_replicas"),
        ({"scaling": {"max_replicas": 2, "down_after_seconds": 1}}, "scaling.down_after_seconds"),
        ({"scaling": {"max_replicas": 2}, "num_replicas": 5}, "num_replicas"),
        ({"scaling": {"max_replicas": 2}, "engine": "openai", "model": "", "urls": ["http://a"]}, "scaling"),
    ],
)
async def test_bounds_that_make_no_sense_are_refused_by_name(
    operator: httpx.AsyncClient, changes: dict[str, Any], param: str
) -> None:
    reply = await operator.post("/pools", json=POOL | {"settings": {}} | changes)
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param


async def test_a_number_beyond_the_bounds_is_refused_as_long_as_they_hold(
    operator: httpx.AsyncClient, agent: Agent
) -> None:
    pool_id = await make_pool(operator, agent)
    reply = await operator.post(f"/pools/{pool_id}", json={"num_replicas": 9})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "num_replicas")
    assert "between 0 and 4" in reply.json()["error"]["message"]


@asynccontextmanager
async def decision_waiting(
    database: Database, agent: Agent, conn: Any
) -> AsyncIterator[asyncio.Task[list[ReplicaCountChange]]]:
    """Have the agent decide, and give the task once it waits for a row locked by the transaction of `conn`."""
    pid = await conn.fetchval("SELECT pg_backend_pid()")
    deciding = asyncio.create_task(decide_scaling(database, agent))

    async def waits() -> bool:
        async with database.acquire() as other:
            found: bool = await other.fetchval(
                "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid)))", pid
            )
        return found

    await until(waits)
    yield deciding


async def test_what_an_operator_changes_while_the_agent_decides_counts(
    operator: httpx.AsyncClient, database: Database, agent: Agent
) -> None:
    pool_id = await make_pool(operator, agent)
    await agent.serve(pool_id)
    async with database.acquire() as conn:
        await report_loads(conn, "gateway_1", {pool_id: Load(num_held=3, idle_s=0.0)})
    async with database.acquire() as conn:
        async with conn.transaction():
            await conn.fetch("SELECT FROM pools WHERE id = $1 FOR NO KEY UPDATE", pool_id)
            async with decision_waiting(database, agent, conn) as deciding:
                await clear_scaling(conn, pool_id)
        assert await deciding == [], "the number follows the load no more"
    assert (await read_pool(operator, pool_id))["num_replicas"] == 0


async def test_the_agent_waits_for_no_row_once_others_wait_for_its_changes(
    operator: httpx.AsyncClient, database: Database, agent: Agent
) -> None:
    waking, learning = sorted([await make_pool(operator, agent), await make_pool(operator, agent, name="other")])
    await agent.serve(waking)
    await agent.start(learning)
    await operator.post(f"/pools/{learning}", json={"num_replicas": 1})
    async with database.acquire() as conn:
        loads = {waking: Load(num_held=3, idle_s=0.0), learning: Load(num_ready=1, places=8, num_running=1, idle_s=0.0)}
        await report_loads(conn, "gateway_1", loads)
    async with database.acquire() as conn:
        async with conn.transaction():
            await conn.fetch("SELECT FROM pools WHERE id = $1 FOR NO KEY UPDATE", learning)
            await conn.fetch("SELECT FROM pool_scaling WHERE pool_id = $1 FOR NO KEY UPDATE", learning)
            async with decision_waiting(database, agent, conn) as deciding:
                await set_scaling(conn, learning, Bounds(0, 3))
        assert [(each.pool_id, each.after) for each in await deciding] == [(waking, 1)]
