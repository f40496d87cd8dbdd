"""Replicas start on hosts that have the labels which a pool asks for, and that could prepare the pool's model."""

from __future__ import annotations

import datetime
from typing import Any

import httpx
import pytest

from gateway.db.pool import Database
from gateway.db.pools.host_failures import clear_failure, list_failures, may_others_prepare, note_failure
from gateway.db.pools.hosts import remove_host
from gateway.db.pools.planning import plan_pools
from gateway.domain.pools.plan import MAX_PREPARATIONS, Create, Drain, GiveUp
from tests.gateway.pools.acting_agent import Agent

SOON = datetime.timedelta(seconds=5)


class Hosts:
    """Two hosts that are alike."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.one, self.two = Agent(database), Agent(database, "host_2", "gpu-2")

    async def claim(self) -> None:
        await self.one.claim()
        await self.two.claim()

    async def plan(self) -> list[Any]:
        async with self.database.acquire() as conn:
            return list(await plan_pools(conn, self.one.host_id, self.one.generation))

    async def places(self) -> list[str]:
        """Plan, and return the hosts on which replicas are to start."""
        return [each.place.host_id for each in await self.plan() if isinstance(each, Create)]


@pytest.fixture
async def hosts(database: Database) -> Hosts:
    made = Hosts(database)
    await made.claim()
    return made


async def make(operator: httpx.AsyncClient, hosts: Hosts, **changes: Any) -> str:
    reply = await operator.post("/pools", json={"name": "tiny", "model": "demo", "num_replicas": 2} | changes)
    assert reply.status_code == 200, reply.text
    pool_id: str = reply.json()["id"]
    await hosts.one.prepare(pool_id)
    return pool_id


async def test_replicas_start_where_the_labels_are_and_move_with_them(
    operator: httpx.AsyncClient, hosts: Hosts
) -> None:
    await operator.post("/hosts/host_2", json={"labels": {"zone": "west"}})
    pool_id = await make(operator, hosts, placement={"zone": "west"}, num_replicas=1)
    assert await hosts.places() == ["host_2"]
    found = (await operator.get(f"/pools/{pool_id}")).json()
    replica_id = found["replicas"][0]["id"]
    assert found["placement"] == {"zone": "west"}
    await hosts.two.ready(replica_id)
    await hosts.plan()
    await operator.post("/hosts/host_1", json={"labels": {"zone": "east"}})
    assert (await operator.post(f"/pools/{pool_id}", json={"placement": {"zone": "east"}})).status_code == 200
    assert await hosts.places() == ["host_1"], "another one first, before the present one goes"
    new_id = (await operator.get(f"/pools/{pool_id}")).json()["replicas"][1]["id"]
    await hosts.one.ready(new_id)
    assert [each.replica_id for each in await hosts.plan() if isinstance(each, Drain)] == [replica_id]


async def test_a_pool_says_which_label_no_host_has(operator: httpx.AsyncClient, hosts: Hosts) -> None:
    pool_id = await make(operator, hosts, placement={"disk": "ssd"})
    assert await hosts.places() == []
    found = (await operator.get(f"/pools/{pool_id}")).json()
    assert "gpu-1 has no label disk=ssd" in found["why"]


async def test_a_host_that_could_not_prepare_a_model_is_left_out_until_it_can_and_says_why(
    operator: httpx.AsyncClient, hosts: Hosts, database: Database
) -> None:
    pool_id = await make(operator, hosts)
    async with database.acquire() as conn:
        await note_failure(conn, "host_1", pool_id, 1, "no such folder", SOON)
        await note_failure(conn, "host_1", pool_id, 1, "no such folder", SOON)
    assert await hosts.places() == ["host_2", "host_2"]
    [shown] = (await operator.get("/hosts/host_1")).json()["failures"]
    assert (shown["pool_id"], shown["revision"], shown["num_failures"]) == (pool_id, 1, 2)
    assert shown["why"] == "no such folder" and shown["retry_at"] > 0
    assert (await operator.get("/hosts/host_2")).json()["failures"] == []
    async with database.acquire() as conn:
        await clear_failure(conn, "host_1", pool_id, 1)
    await operator.post(f"/pools/{pool_id}", json={"num_replicas": 3})
    assert await hosts.places() == ["host_1"]


async def test_a_revision_may_be_prepared_as_long_as_one_host_has_not_failed(
    operator: httpx.AsyncClient, hosts: Hosts, database: Database
) -> None:
    pool_id = await make(operator, hosts)
    async with database.acquire() as conn:
        await note_failure(conn, "host_1", pool_id, 1, "no such folder", SOON)
        assert await may_others_prepare(conn, "host_1", pool_id, 1)
        await note_failure(conn, "host_2", pool_id, 1, "no such folder", SOON)
        assert not await may_others_prepare(conn, "host_1", pool_id, 1)


async def test_failures_at_former_revisions_and_of_removed_hosts_count_no_more(
    operator: httpx.AsyncClient, hosts: Hosts, database: Database
) -> None:
    pool_id = await make(operator, hosts)
    async with database.acquire() as conn:
        await note_failure(conn, "host_1", pool_id, 1, "no such folder", SOON)
    await operator.post(f"/pools/{pool_id}", json={"model": "demo", "settings": {"max_model_len": 64}})
    async with database.acquire() as conn:
        assert await list_failures(conn) == []
        await note_failure(conn, "host_1", pool_id, 2, "no such folder", SOON)
        assert [each.revision for each in await list_failures(conn)] == [2]
        await remove_host(conn, "host_1")
        assert await list_failures(conn) == []


async def test_a_new_revision_waits_for_a_host_that_has_failed_a_few_times(
    operator: httpx.AsyncClient, hosts: Hosts, database: Database
) -> None:
    pool_id = await make(operator, hosts, num_replicas=1)
    await operator.post("/hosts/host_2", json={"labels": {"zone": "west"}})
    await hosts.one.start(pool_id)
    await operator.post(
        f"/pools/{pool_id}", json={"model": "demo", "settings": {"max_model_len": 64}, "placement": {"zone": "west"}}
    )
    await hosts.one.prepare(pool_id, 2)
    for number in range(MAX_PREPARATIONS):
        async with database.acquire() as conn:
            await note_failure(conn, "host_2", pool_id, 2, "the connection was reset", SOON)
        given_up = [each for each in await hosts.plan() if isinstance(each, GiveUp)]
        assert bool(given_up) == (number + 1 == MAX_PREPARATIONS)


@pytest.mark.parametrize("placement", [{"Zone": "west"}, {"zone": "a b"}, {"zone": ""}])
async def test_labels_that_no_host_can_have_are_refused(operator: httpx.AsyncClient, placement: dict[str, str]) -> None:
    reply = await operator.post("/pools", json={"name": "tiny", "model": "demo", "placement": placement})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "placement")
