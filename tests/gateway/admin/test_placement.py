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
from gateway.domain.pools.capacity import Node
from gateway.domain.pools.plan import MAX_PREPARATIONS, Create, Drain, GiveUp
from tests.gateway.pools.acting_agent import Agent

SOON = datetime.timedelta(seconds=5)


class Hosts:
    """Two equal hosts, and a pool to place on them."""

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
        """Plan, and return the hosts on which replicas would start."""
        return [each.place.host_id for each in await self.plan() if isinstance(each, Create)]


@pytest.fixture
async def hosts(database: Database) -> Hosts:
    made = Hosts(database)
    await made.claim()
    return made


async def make_pool(operator: httpx.AsyncClient, hosts: Hosts, **changes: Any) -> str:
    reply = await operator.post("/pools", json={"name": "tiny", "model": "demo", "num_replicas": 2} | changes)
    assert reply.status_code == 200, reply.text
    pool_id: str = reply.json()["id"]
    await hosts.one.prepare(pool_id)
    return pool_id


async def test_replicas_start_where_the_labels_are_and_move_with_them(
    operator: httpx.AsyncClient, hosts: Hosts
) -> None:
    await operator.post("/hosts/host_2", json={"labels": {"zone": "west"}})
    pool_id = await make_pool(operator, hosts, placement={"zone": "west"}, num_replicas=1)
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


async def test_a_pool_says_of_each_host_whether_a_replica_could_start_there_and_why(
    operator: httpx.AsyncClient, hosts: Hosts, database: Database
) -> None:
    third = Agent(database, "host_3", "gpu-3")
    await third.claim()
    await third.die()
    await operator.post("/hosts/host_2", json={"labels": {"disk": "ssd"}})
    made = (await operator.post("/pools", json={"name": "tiny", "model": "demo", "placement": {"disk": "ssd"}})).json()
    assert made["hosts"] == [], "nobody knows what a replica needs"
    await hosts.one.prepare(made["id"])
    found = (await operator.get(f"/pools/{made['id']}")).json()["hosts"]
    assert [(each["host"], each["fits"]) for each in found] == [("gpu-1", False), ("gpu-2", True), ("gpu-3", False)]
    assert found[0]["why"] == "gpu-1 has no label disk=ssd"
    assert "64.0 GiB" in found[1]["why"] and found[2]["why"] == "no agent runs on gpu-3"
    [one, _, three] = (await operator.get("/hosts")).json()["data"]
    assert one["version"] and one["away_seconds"] is None and three["away_seconds"] >= 0


async def test_replicas_move_between_the_nodes_of_a_cluster(operator: httpx.AsyncClient, database: Database) -> None:
    cluster = Agent(database, "host_3", "cluster")
    await cluster.claim(placement="ray")
    await cluster.tell_nodes(
        Node("10.0.0.7", "rack-7", 4, 8 << 30, 0, {"zone": "west"}), Node("10.0.0.8", "rack-8", 4, 8 << 30, 0)
    )
    reply = await operator.post("/pools", json={"name": "tiny", "model": "demo", "placement": {"zone": "west"}})
    pool_id = reply.json()["id"]
    await cluster.prepare(pool_id)

    async def plan() -> list[Any]:
        async with database.acquire() as conn:
            return list(await plan_pools(conn, cluster.host_id, cluster.generation))

    async def begin() -> str:
        """Start the replica that was made last; return its id."""
        replicas = (await operator.get("/replicas")).json()["data"]
        [replica_id] = [each["id"] for each in replicas if each["state"] == "starting"]
        return str(replica_id)

    assert [type(each) for each in await plan()] == [Create]
    first = await begin()
    await cluster.ready(first, "tcp://10.0.0.7:7400")
    await plan()
    assert await plan() == []
    await operator.post(f"/pools/{pool_id}", json={"placement": {}, "exclusion": {"zone": ["west"]}})
    assert [type(each) for each in await plan()] == [Create]
    assert await plan() == [], "the former one serves until then"
    await cluster.ready(await begin(), "tcp://10.0.0.8:7400")
    assert await plan() == [Drain(first, "another replica takes its place")]


async def test_a_pool_says_which_label_no_host_has(operator: httpx.AsyncClient, hosts: Hosts) -> None:
    pool_id = await make_pool(operator, hosts, placement={"disk": "ssd"})
    assert await hosts.places() == []
    found = (await operator.get(f"/pools/{pool_id}")).json()
    assert "gpu-1 has no label disk=ssd" in found["why"]


async def test_no_replica_starts_on_a_host_with_an_excluded_label_and_replicas_there_are_replaced(
    operator: httpx.AsyncClient, hosts: Hosts
) -> None:
    await operator.post("/hosts/host_1", json={"labels": {"disk": "hdd", "zone": "west"}})
    pool_id = await make_pool(operator, hosts, exclusion={"disk": ["tape", "hdd"]}, num_replicas=1)
    assert await hosts.places() == ["host_2"]
    found = (await operator.get(f"/pools/{pool_id}")).json()
    assert found["exclusion"] == {"disk": ["tape", "hdd"]} and found["placement"] == {}
    [replica] = found["replicas"]
    await hosts.two.ready(replica["id"])
    await hosts.plan()
    await operator.post("/hosts/host_1", json={"labels": {}})
    await operator.post("/hosts/host_2", json={"labels": {"zone": "east"}})
    changed = await operator.post(f"/pools/{pool_id}", json={"exclusion": {"zone": ["east"]}})
    assert changed.status_code == 200 and changed.json()["exclusion"] == {"zone": ["east"]}
    assert await hosts.places() == ["host_1"], "another one first, before the present one goes"
    await operator.post(f"/pools/{pool_id}", json={"placement": {"disk": "ssd"}})
    kept = (await operator.get(f"/pools/{pool_id}")).json()
    assert (kept["placement"], kept["exclusion"]) == ({"disk": "ssd"}, {"zone": ["east"]})


async def test_a_pool_says_which_label_of_a_host_it_excludes(operator: httpx.AsyncClient, hosts: Hosts) -> None:
    for host_id in ("host_1", "host_2"):
        await operator.post(f"/hosts/{host_id}", json={"labels": {"disk": "hdd"}})
    pool_id = await make_pool(operator, hosts, exclusion={"disk": ["hdd"]})
    assert await hosts.places() == []
    assert (
        "gpu-1 has the label disk=hdd, which the pool excludes"
        in (await operator.get(f"/pools/{pool_id}")).json()["why"]
    )


async def test_a_host_that_could_not_prepare_a_model_is_left_out_until_it_can_and_says_why(
    operator: httpx.AsyncClient, hosts: Hosts, database: Database
) -> None:
    pool_id = await make_pool(operator, hosts)
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
    pool_id = await make_pool(operator, hosts)
    async with database.acquire() as conn:
        await note_failure(conn, "host_1", pool_id, 1, "no such folder", SOON)
        assert await may_others_prepare(conn, "host_1", pool_id, 1)
        await note_failure(conn, "host_2", pool_id, 1, "no such folder", SOON)
        assert not await may_others_prepare(conn, "host_1", pool_id, 1)


async def test_failures_at_former_revisions_and_of_removed_hosts_count_no_more(
    operator: httpx.AsyncClient, hosts: Hosts, database: Database
) -> None:
    pool_id = await make_pool(operator, hosts)
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
    pool_id = await make_pool(operator, hosts, num_replicas=1)
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


@pytest.mark.parametrize("exclusion", [{"Zone": ["west"]}, {"zone": ["a b"]}, {"zone": []}, {"zone": "west"}])
async def test_excluded_labels_that_no_host_can_have_are_refused(
    operator: httpx.AsyncClient, exclusion: dict[str, Any]
) -> None:
    reply = await operator.post("/pools", json={"name": "tiny", "model": "demo", "exclusion": exclusion})
    assert reply.status_code == 400 and reply.json()["error"]["param"].startswith("exclusion")


async def test_a_label_that_is_asked_for_and_excluded_is_refused(operator: httpx.AsyncClient, hosts: Hosts) -> None:
    both = {"placement": {"zone": "west"}, "exclusion": {"zone": ["east", "west"]}}
    reply = await operator.post("/pools", json={"name": "tiny", "model": "demo"} | both)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "exclusion"), reply.text
    pool_id = await make_pool(operator, hosts, placement={"zone": "west"}, exclusion={"zone": ["east"]})
    reply = await operator.post(f"/pools/{pool_id}", json={"exclusion": {"zone": ["west"]}})
    assert reply.status_code == 400 and "zone=west" in reply.json()["error"]["message"]
