"""The admin API of pools: each change by an operator is checked and stored, and a pool that is held up says why."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.config import model_digest
from gateway.db.adapters import adapter_versions
from gateway.db.organization.projects import purge_project
from gateway.db.pool import Database
from gateway.db.pools import replicas, revisions
from gateway.db.pools.served import switch_revision
from tests.adapters.folders import tensors_of_width, write_adapter
from tests.gateway.admin.test_conflicts import HOLD_CHANGES, until_waiting
from tests.gateway.admin_server import AdminServer
from tests.gateway.bases import BASE_DIGEST, put_adapter
from tests.gateway.model_folder import make_model_folder
from tests.gateway.pools.acting_agent import DIGEST, GIB, Agent

POOL = {"name": "qwen3-0.6b", "model": "Qwen/Qwen3-0.6B", "settings": {"max_model_len": 8192}, "num_replicas": 2}


@pytest.fixture
async def agent(database: Database) -> Agent:
    agent = Agent(database)
    await agent.claim()
    return agent


async def make_pool(operator: httpx.AsyncClient, **changes: Any) -> dict[str, Any]:
    reply = await operator.post("/pools", json=POOL | changes)
    assert reply.status_code == 200, reply.text
    made: dict[str, Any] = reply.json()
    return made


async def make_serving_pool(
    operator: httpx.AsyncClient, agent: Agent, *, num_bytes: int = 2 * GIB, **changes: Any
) -> tuple[str, list[str]]:
    """Make a pool whose two replicas are ready; return its path and the ids of the replicas."""
    pool_id = (await make_pool(operator, **changes))["id"]
    await agent.prepare(pool_id, num_bytes=num_bytes)
    ids = [await agent.start(pool_id) for _ in range(2)]
    return f"/pools/{pool_id}", ids


async def pool_events(operator: httpx.AsyncClient) -> list[str]:
    """Return the types of changes of pools and replicas, oldest first."""
    logs = (await operator.get("/audit_logs", params={"limit": 100})).json()["data"]
    return [log["type"] for log in reversed(logs) if log["type"].startswith(("pool.", "replica."))]


def error_of(reply: httpx.Response) -> tuple[int, str | None]:
    return reply.status_code, reply.json()["error"]["param"]


async def test_a_pool_is_made_and_shown_with_its_revision(operator: httpx.AsyncClient) -> None:
    made = await make_pool(operator)
    assert (made["object"], made["state"], made["revision"], made["wanted_revision"]) == (
        "organization.pool",
        "starting",
        None,
        1,
    )
    assert (made["model"], made["settings"], made["num_replicas"], made["num_ready"]) == (
        POOL["model"],
        {"max_model_len": "8192"},
        2,
        0,
    )
    (revision,) = made["revisions"]
    assert (revision["revision"], revision["state"], revision["replica_bytes"]) == (1, "preparing", None)
    assert (made["replicas"], made["grants"], made["num_adapters"]) == ([], [], 0)
    assert (await operator.get(f"/pools/{made['id']}")).json() == made
    (listed,) = (await operator.get("/pools")).json()["data"]
    assert listed == {name: made[name] for name in listed}
    assert await pool_events(operator) == ["pool.created"]


async def test_replicas_and_hosts_are_shown_with_the_memory_they_take(
    operator: httpx.AsyncClient, agent: Agent, database: Database
) -> None:
    await agent.die()
    await agent.claim(num_gpus=2)
    pool = await make_pool(operator, num_replicas=1)
    await agent.prepare(pool["id"])
    replica_id = await agent.start(pool["id"], gpu=1)
    shown = (await operator.get(f"/pools/{pool['id']}")).json()
    assert (shown["state"], shown["num_ready"], shown["replica_bytes"]) == ("ready", 1, 2 * GIB)
    (replica,) = shown["replicas"]
    assert (replica["id"], replica["host"], replica["gpu"], replica["state"], replica["generation"]) == (
        replica_id,
        "gpu-1",
        1,
        "ready",
        1,
    )
    assert replica["address"] == f"ipc:///run/{replica_id}.sock"
    assert (await operator.get("/replicas")).json()["data"] == [replica]
    (host,) = (await operator.get("/hosts")).json()["data"]
    assert (host["name"], host["is_alive"], host["taken_bytes"], host["num_replicas"]) == ("gpu-1", True, 0, 1)
    assert [(gpu["taken_bytes"], gpu["num_replicas"]) for gpu in host["gpus"]] == [(0, 0), (2 * GIB, 1)]


async def test_a_pool_that_lacks_room_for_a_replica_says_so_with_the_sum(
    operator: httpx.AsyncClient, agent: Agent
) -> None:
    pool_id = (await make_pool(operator))["id"]
    await agent.prepare(pool_id, num_bytes=40 * GIB)
    await agent.start(pool_id)
    shown = (await operator.get(f"/pools/{pool_id}")).json()
    assert (shown["state"], shown["why"]) == (
        "scaling",
        "1 of 2 replicas is ready. There is no room for one more. "
        "A replica needs 40.0 GiB of memory; gpu-1 has 64.0 GiB, of which 24.0 GiB are free.",
    )
    assert (await operator.get("/pools")).json()["data"][0]["why"] == shown["why"]


async def test_a_wrong_field_is_refused_by_its_name(operator: httpx.AsyncClient, acme: str) -> None:
    project = {"project_id": acme.removeprefix("/projects/")}
    wrong: list[tuple[dict[str, Any], str]] = [
        *(({"name": name}, "name") for name in ("", "a:b", "a@b", "-a", "a b", "x" * 129)),
        *(({"model": model}, "model") for model in ("", "qwen", "../qwen", "a:b")),
        ({"settings": {"bananas": 1}}, "settings.bananas"),
        ({"settings": {"endpoint": "ipc:///x"}}, "settings.endpoint"),
        ({"settings": {"max_num_seqs": "x"}}, "settings.max_num_seqs"),
        ({"num_replicas": -1}, "num_replicas"),
        ({"num_replicas": 1001}, "num_replicas"),
        ({"access": "some"}, "access"),
        ({"access": "listed"}, "grants"),
        ({"grants": [project]}, "grants"),
        ({"access": "listed", "grants": [{"organization_id": "org_none"}]}, "grants[0].organization_id"),
        ({"access": "listed", "grants": [project, {"project_id": "proj_none"}]}, "grants[1].project_id"),
        ({"access": "listed", "grants": [project, project]}, "grants[1]"),
        ({"surprise": 1}, "surprise"),
    ]
    for change, param in wrong:
        assert error_of(await operator.post("/pools", json=POOL | change)) == (400, param), change
    pool = await make_pool(operator)
    for change, param in wrong:
        if "name" not in change:
            assert error_of(await operator.post(f"/pools/{pool['id']}", json=change)) == (400, param), change
    assert await pool_events(operator) == ["pool.created"]


async def test_a_number_among_the_settings_keeps_all_its_digits(operator: httpx.AsyncClient) -> None:
    made = await make_pool(operator, settings={"gpu_memory_fraction": 0.123456789, "max_num_seqs": 12_345_678.0})
    assert made["settings"] == {"gpu_memory_fraction": "0.123456789", "max_num_seqs": "12345678"}


async def test_a_name_is_taken_once_and_the_operators_organization_alone_makes_pools(
    server: AdminServer, operator: httpx.AsyncClient
) -> None:
    made = await make_pool(operator)
    assert error_of(await operator.post("/pools", json=POOL)) == (409, "name")
    async with server.client(await server.admin_key("admin_read", "admin_write", organization="other")) as other:
        assert error_of(await other.post("/pools", json=POOL)) == (403, None)
        assert (await other.get(f"/pools/{made['id']}")).status_code == 404
        assert (await other.get("/pools")).json()["data"] == []


async def test_a_pool_and_an_alias_of_a_tenant_that_may_use_it_never_have_one_name(
    operator: httpx.AsyncClient, acme: str, database: Database
) -> None:
    globex = (await operator.post("/projects", json={"name": "globex"})).json()["id"]
    mine, theirs = [{"project_id": acme.removeprefix("/projects/")}], [{"project_id": globex}]
    async with database.acquire() as conn:
        await put_adapter(conn, acme.removeprefix("/projects/"), "pirate", digest="a" * 64, rank=8, size_bytes=1)
    alias = {"name": "bot", "adapter": "pirate", "version": 1}
    hidden = await make_pool(operator, name="bot", access="listed", grants=theirs)
    assert (await operator.post(f"{acme}/aliases", json=alias)).status_code == 200, "as if there were no such pool"
    path = f"/pools/{hidden['id']}"
    assert error_of(await operator.post(path, json={"access": "all"})) == (409, "name")
    assert error_of(await operator.post(path, json={"grants": theirs + mine})) == (409, "name")
    assert error_of(await operator.post(path, json={"grants": [{}]})) == (409, "name")
    await operator.delete(f"{acme}/aliases/bot")
    assert (await operator.post(path, json={"grants": theirs + mine})).status_code == 200
    assert error_of(await operator.post(f"{acme}/aliases", json=alias)) == (400, "name")
    await operator.post(f"{acme}/aliases", json=alias | {"name": "other"})
    assert error_of(await operator.post("/pools", json=POOL | {"name": "other"})) == (409, "name")
    assert (
        await operator.post("/pools", json=POOL | {"name": "other", "access": "listed", "grants": theirs})
    ).is_success


async def test_another_model_is_a_new_revision_that_is_wanted_until_it_serves(
    operator: httpx.AsyncClient, agent: Agent
) -> None:
    path, _ = await make_serving_pool(operator, agent)
    changed = (await operator.post(path, json={"model": "demo"})).json()
    assert (changed["revision"], changed["wanted_revision"], changed["state"]) == (1, 2, "changing")
    assert (changed["model"], changed["settings"]) == ("demo", {"max_model_len": "8192"}), "settings stay"
    assert [each["revision"] for each in changed["revisions"]] == [2, 1]
    again = (await operator.post(path, json={"model": "demo"})).json()
    assert again["wanted_revision"] == 2
    third = (await operator.post(path, json={"settings": {}})).json()
    assert (third["wanted_revision"], third["model"], third["settings"]) == (3, "demo", {})
    assert [each["state"] for each in third["revisions"]] == ["preparing", "retired", "prepared"]
    pool_id = path.removeprefix("/pools/")
    await agent.prepare(pool_id, 3)
    await agent.start(pool_id, 3)
    assert (await operator.get(path)).json()["revision"] == 3
    assert await pool_events(operator) == ["pool.created", "pool.updated", "pool.updated"]


@pytest.mark.parametrize(("replica_gib", "rollout"), [(2, "side by side"), (30, "one after the other"), (70, None)])
async def test_a_pool_shows_how_its_replicas_will_be_replaced(
    operator: httpx.AsyncClient, agent: Agent, replica_gib: int, rollout: str | None
) -> None:
    path, _ = await make_serving_pool(operator, agent, num_bytes=20 * GIB)
    changed = (await operator.post(path, json={"model": "demo"})).json()
    assert changed["rollout"] is None, "nobody knows what it needs"
    await agent.prepare(path.removeprefix("/pools/"), 2, num_bytes=replica_gib * GIB)
    assert (await operator.get(path)).json()["rollout"] == rollout
    assert (await operator.post(f"{path}/cancel")).json()["rollout"] is None


async def test_a_change_is_cancelled_while_it_is_under_way(operator: httpx.AsyncClient, agent: Agent) -> None:
    path, _ = await make_serving_pool(operator, agent)
    assert error_of(await operator.post(f"{path}/cancel")) == (409, None), "there is none"
    await operator.post(path, json={"model": "demo"})
    cancelled = (await operator.post(f"{path}/cancel")).json()
    assert (cancelled["revision"], cancelled["wanted_revision"], cancelled["state"]) == (1, 1, "ready")
    assert [each["state"] for each in cancelled["revisions"]] == ["retired", "prepared"]
    assert await pool_events(operator) == ["pool.created", "pool.updated", "pool.cancelled"]
    never_served = (await make_pool(operator, name="other"))["id"]
    assert error_of(await operator.post(f"/pools/{never_served}/cancel")) == (409, None)


async def test_the_same_model_is_tried_again_after_it_failed(operator: httpx.AsyncClient, database: Database) -> None:
    pool = await make_pool(operator)
    async with database.acquire() as conn:
        await revisions.set_revision_state(conn, pool["id"], 1, "failed", "The hub cannot be reached.")
    shown = (await operator.get(f"/pools/{pool['id']}")).json()
    assert (shown["state"], shown["why"]) == ("failed", "The hub cannot be reached.")
    again = (await operator.post(f"/pools/{pool['id']}", json={"model": POOL["model"]})).json()
    assert (again["wanted_revision"], again["state"]) == (2, "starting")
    assert [each["state"] for each in again["revisions"]] == ["preparing", "failed"]
    assert (await operator.delete(f"/pools/{pool['id']}")).status_code == 409, "replicas are wanted"
    async with database.acquire() as conn:
        await revisions.set_revision_state(conn, pool["id"], 2, "failed", "The hub cannot be reached.")
    assert (await operator.delete(f"/pools/{pool['id']}")).status_code == 200, "nothing runs, and nothing will"


async def test_a_base_that_adapters_do_not_fit_is_refused_by_their_names_unless_that_is_confirmed(
    server: AdminServer, operator: httpx.AsyncClient, agent: Agent, acme: str, database: Database, tmp_path: Path
) -> None:
    new = make_model_folder(tmp_path / "new")
    path, _ = await make_serving_pool(operator, agent, model="/models/old")
    twin = await make_pool(operator, name="twin", model=str(new), num_replicas=0)
    await agent.prepare(twin["id"], digest=model_digest(new), folder=str(new))
    store = server.services.store
    async with database.acquire() as conn:
        for name, width in (("good", 32), ("bad", 64)):
            digest = store.add(write_adapter(tmp_path / name, tensors=tensors_of_width(width)))
            await adapter_versions.put_adapter(
                conn,
                acme.removeprefix("/projects/"),
                name,
                base_digest=DIGEST,
                digest=digest,
                rank=2,
                size_bytes=1,
            )
    reply = await operator.post(path, json={"model": str(new)})
    assert error_of(reply) == (409, "model")
    refusal = reply.json()["error"]
    assert refusal["code"] == "adapters_do_not_fit"
    assert "acme:bad@1 (layer 0 q_proj: made for" in refusal["message"] and "good" not in refusal["message"]
    assert (await operator.get(path)).json()["wanted_revision"] == 1
    changed = await operator.post(path, json={"model": str(new), "allow_unfit_adapters": True})
    assert (changed.status_code, changed.json()["wanted_revision"]) == (200, 2)
    assert (await operator.post(path, json={"model": "/models/unknown"})).status_code == 200, "the agent will look"


async def test_scaling_and_draining_say_how_many_shall_run(operator: httpx.AsyncClient, agent: Agent) -> None:
    path, (first, _) = await make_serving_pool(operator, agent)
    scaled = (await operator.post(path, json={"num_replicas": 3})).json()
    assert (scaled["num_replicas"], scaled["state"], scaled["why"]) == (3, "scaling", "2 of 3 replicas are ready.")
    await operator.post(path, json={"num_replicas": 3})
    drained = (await operator.post(f"/replicas/{first}/drain")).json()
    assert drained["state"] == "draining"
    assert (await operator.post(f"/replicas/{first}/drain")).json() == drained
    assert (await operator.get(path)).json()["num_replicas"] == 2, "once"
    assert (await operator.post(f"{path}/drain")).json()["num_replicas"] == 0
    await operator.post(f"{path}/drain")
    assert await pool_events(operator) == ["pool.created", "pool.scaled", "replica.drained", "pool.drained"]
    logs = (await operator.get("/audit_logs", params={"event_types[]": "replica.drained"})).json()["data"]
    change = logs[0]["replica.drained"]
    assert [change[when]["num_replicas"] for when in ("before", "after")] == [3, 2]


async def test_a_replica_is_replaced_where_an_agent_runs_it(
    operator: httpx.AsyncClient, agent: Agent, database: Database
) -> None:
    path, (first, second) = await make_serving_pool(operator, agent)
    for _ in range(2):
        assert (await operator.post(f"/replicas/{first}/restart")).json()["replace"] is True
    await operator.post(f"/replicas/{second}/drain")
    assert error_of(await operator.post(f"/replicas/{second}/restart")) == (409, None)
    await operator.post(path, json={"model": "demo"})
    assert error_of(await operator.post(f"/replicas/{first}/drain")) == (409, None), "the change decides"
    async with database.acquire() as conn:
        elsewhere = await replicas.add_running_replica(conn, path.removeprefix("/pools/"), 1, "tcp://engine:5555")
    assert error_of(await operator.post(f"/replicas/{elsewhere.id}/restart")) == (409, None)
    assert await pool_events(operator) == [
        "pool.created",
        "replica.restarted",
        "replica.drained",
        "pool.updated",
    ]


async def test_what_holds_a_pool_is_said_until_nothing_does(
    operator: httpx.AsyncClient, agent: Agent, acme: str, database: Database
) -> None:
    pool_id = (await make_pool(operator, num_replicas=1))["id"]
    await agent.prepare(pool_id, digest=BASE_DIGEST)
    replica_id, path = await agent.start(pool_id), f"/pools/{pool_id}"
    async with database.acquire() as conn:
        await put_adapter(conn, acme.removeprefix("/projects/"), "pirate", digest="a" * 64, rank=8, size_bytes=1)

    async def held() -> str:
        reply = await operator.delete(path)
        assert (reply.status_code, reply.json()["error"]["code"]) == (409, "pool_in_use"), reply.text
        return str(reply.json()["error"]["message"])

    assert await held() == "The pool is to run 1 replica: drain it first."
    await operator.post(path, json={"num_replicas": 0})
    assert "still has 1 replica running" in await held()
    async with database.acquire() as conn:
        await replicas.drain_replicas(conn, [replica_id], "scaled down")
    assert "1 replica that is draining" in await held()
    await agent.stop(replica_id)
    assert (await held()).startswith("1 adapter belongs to the base of this pool")
    await make_serving_pool(operator, agent, name="other")
    await agent.prepare((await make_pool(operator, name="twin"))["id"], digest=BASE_DIGEST)
    assert (await held()).startswith("1 adapter belongs"), "the twin does not serve yet"
    await operator.delete(f"{acme}/adapters/pirate")
    assert (await operator.delete(path)).json()["deleted"] is True
    assert (await operator.get(path)).status_code == 404
    assert (await operator.post("/pools", json=POOL)).status_code == 200, "the name is free"
    assert (await pool_events(operator))[-2:] == ["pool.removed", "pool.created"]


async def test_another_pool_of_the_base_lets_its_adapters_be(
    operator: httpx.AsyncClient, agent: Agent, acme: str, database: Database
) -> None:
    async with database.acquire() as conn:
        await put_adapter(conn, acme.removeprefix("/projects/"), "pirate", digest="a" * 64, rank=8, size_bytes=1)
    ids = [(await make_pool(operator, name=name, num_replicas=0))["id"] for name in ("one", "two")]
    for pool_id in ids:
        await agent.prepare(pool_id, digest=BASE_DIGEST)
        async with database.acquire() as conn:
            await switch_revision(conn, pool_id, 1)
    assert (await operator.get(f"/pools/{ids[0]}")).json()["num_adapters"] == 1
    assert (await operator.delete(f"/pools/{ids[0]}")).status_code == 200
    assert (await operator.delete(f"/pools/{ids[1]}")).status_code == 409


async def test_parallel_removals_of_the_last_two_pools_of_a_base_with_adapters_remove_one_pool(
    operator: httpx.AsyncClient, agent: Agent, acme: str, database: Database
) -> None:
    async with database.acquire() as conn:
        await put_adapter(conn, acme.removeprefix("/projects/"), "pirate", digest="a" * 64, rank=8, size_bytes=1)
    ids = [(await make_pool(operator, name=name, num_replicas=0))["id"] for name in ("one", "two")]
    for pool_id in ids:
        await agent.prepare(pool_id, digest=BASE_DIGEST)
        async with database.acquire() as conn:
            await switch_revision(conn, pool_id, 1)
    async with database.transaction() as conn:
        await conn.execute(HOLD_CHANGES)
        removals = [asyncio.create_task(operator.delete(f"/pools/{pool_id}")) for pool_id in ids]
        await until_waiting(database, 2)
    assert sorted([reply.status_code for reply in await asyncio.gather(*removals)]) == [200, 409]
    assert len((await operator.get("/pools")).json()["data"]) == 1


async def test_a_pool_and_an_alias_that_are_made_at_once_never_have_one_name(
    operator: httpx.AsyncClient, acme: str, database: Database
) -> None:
    async with database.acquire() as conn:
        await put_adapter(conn, acme.removeprefix("/projects/"), "pirate", digest="a" * 64, rank=8, size_bytes=1)
    alias = {"name": "bot", "adapter": "pirate", "version": 1}
    async with database.transaction() as conn:
        await conn.execute(HOLD_CHANGES)
        making = [asyncio.create_task(operator.post(f"{acme}/aliases", json=alias))]
        await until_waiting(database, 1)
        making.append(asyncio.create_task(operator.post("/pools", json=POOL | {"name": "bot"})))
        await until_waiting(database, 2)
    assert [reply.status_code for reply in await asyncio.gather(*making)] == [200, 409]


async def test_a_host_that_is_gone_holds_no_pool(operator: httpx.AsyncClient, agent: Agent) -> None:
    path, _ = await make_serving_pool(operator, agent)
    await operator.post(f"{path}/drain")
    assert (await operator.delete(path)).status_code == 409
    await agent.die()
    assert (await operator.delete(path)).status_code == 200


async def test_an_engine_that_somebody_else_runs_is_drained_with_its_pool(
    operator: httpx.AsyncClient, database: Database
) -> None:
    pool = await make_pool(operator, num_replicas=0)
    async with database.acquire() as conn:
        await replicas.add_running_replica(conn, pool["id"], 1, "tcp://engine:5555")
        await switch_revision(conn, pool["id"], 1)
    path = f"/pools/{pool['id']}"
    assert (await operator.get(path)).json()["state"] == "scaling", "no gateway has found it there"
    assert (await operator.delete(path)).status_code == 409
    assert (await operator.post(f"{path}/drain")).json()["state"] == "stopped"
    assert (await operator.delete(path)).status_code == 200


async def test_access_is_given_and_taken(operator: httpx.AsyncClient, acme: str) -> None:
    project_id = acme.removeprefix("/projects/")
    path = f"/pools/{(await make_pool(operator))['id']}"
    assert error_of(await operator.post(path, json={"access": "listed"})) == (400, "grants")
    assert error_of(await operator.post(path, json={"grants": [{"project_id": project_id}]})) == (400, "grants")
    listed = (await operator.post(path, json={"access": "listed", "grants": [{"project_id": project_id}]})).json()
    assert [grant["project_id"] for grant in listed["grants"]] == [project_id]
    organization_id = listed["grants"][0]["organization_id"]
    assert (await operator.post(path, json={"access": "listed"})).json()["grants"] == listed["grants"]
    wider = (await operator.post(path, json={"grants": [{}]})).json()
    assert wider["grants"] == [{"organization_id": organization_id, "project_id": None}]
    assert (await operator.post(path, json={"access": "all"})).json()["grants"] == []
    assert await pool_events(operator) == ["pool.created", "pool.updated", "pool.updated", "pool.updated"]


async def test_a_purged_tenant_may_use_nothing_any_more(
    operator: httpx.AsyncClient, acme: str, database: Database
) -> None:
    mine = {"project_id": acme.removeprefix("/projects/")}
    made = await make_pool(operator, access="listed", grants=[mine])
    async with database.transaction() as conn:
        await purge_project(conn, mine["project_id"])
    assert (await operator.get(f"/pools/{made['id']}")).json()["grants"] == []


async def test_replicas_are_listed_by_pool_and_in_pages(operator: httpx.AsyncClient, agent: Agent) -> None:
    path, ids = await make_serving_pool(operator, agent)
    await make_serving_pool(operator, agent, name="other")
    assert len((await operator.get("/replicas")).json()["data"]) == 4
    of_one = {"pool_id": path.removeprefix("/pools/")}
    assert [each["id"] for each in (await operator.get("/replicas", params=of_one)).json()["data"]] == ids
    page = (await operator.get("/replicas", params=of_one | {"limit": 1})).json()
    assert ([each["id"] for each in page["data"]], page["has_more"]) == (ids[:1], True)
    assert error_of(await operator.get("/replicas", params={"pool_id": "pool_none"})) == (404, "pool_id")


async def test_pools_are_shown_as_of_one_instant_while_they_change(
    operator: httpx.AsyncClient, database: Database
) -> None:
    pool_id = (await make_pool(operator))["id"]
    path, is_over = f"/pools/{pool_id}", False

    async def change() -> None:
        for number in range(30):
            reply = await operator.post(path, json={"settings": {"max_num_seqs": number + 1}})
            assert reply.status_code == 200, reply.text

    async def read_pools() -> None:
        for _ in range(30):
            replies = [await operator.get(each) for each in (path, "/pools", "/replicas")]
            assert {reply.status_code for reply in replies} == {200}

    async def prepare() -> None:
        number = 0
        async with database.acquire() as conn:
            while not is_over:
                number += 1
                for revision in range(1, 32):
                    await revisions.set_progress(conn, pool_id, revision, f"{number} bytes")

    preparing = asyncio.create_task(prepare())
    await asyncio.gather(change(), read_pools(), read_pools(), read_pools())
    is_over = True
    await preparing
    assert (await operator.get(path)).json()["wanted_revision"] == 31


async def test_a_pool_beyond_the_largest_number_is_refused(operator: httpx.AsyncClient, database: Database) -> None:
    from gateway.admin.pools.pools import MAX_POOLS

    first = await make_pool(operator)
    async with database.transaction() as conn:
        await conn.execute(
            "INSERT INTO pools (id, organization_id, name, num_replicas, wanted_revision)"
            " SELECT 'pool_' || n, organization_id, 'p' || n, 0, 1 FROM pools, generate_series(2, $1::integer) n",
            MAX_POOLS,
        )
        await conn.execute(
            "INSERT INTO pool_revisions (pool_id, revision, model) SELECT id, 1, 'demo' FROM pools WHERE id <> $1",
            first["id"],
        )
    reply = await operator.post("/pools", json=POOL | {"name": "one-too-many"})
    assert (reply.status_code, "1000 pools already" in reply.json()["error"]["message"]) == (400, True)


async def test_a_tenants_people_see_the_bases_they_may_use_with_their_prices(
    server: AdminServer, operator: httpx.AsyncClient, agent: Agent, acme: str
) -> None:
    globex = (await operator.post("/projects", json={"name": "globex"})).json()["id"]
    member = await server.user("mia@example.com", None)
    await operator.post(f"{acme}/users", json={"user_id": member["id"], "role": "viewer"})
    await make_serving_pool(operator, agent, name="open", settings={"max_model_len": 4096})
    await make_serving_pool(operator, agent, name="hidden", access="listed", grants=[{"project_id": globex}])
    await make_pool(operator, name="not-ready")
    mine = {"project_id": acme.removeprefix("/projects/")}
    await make_serving_pool(operator, agent, name="mine", settings={}, access="listed", grants=[mine])
    async with server.person("mia@example.com") as mia:
        before = (await mia.get(f"{acme}/models")).json()["data"]
        assert [(each["name"], each["context_length"], each["num_ready"], each["price"]) for each in before] == [
            ("open", 4096, 2, None),
            ("mine", None, 2, None),
        ]
        entries = [
            {"input_nanos_per_million": 200, "output_nanos_per_million": 800, "cached_input_nanos_per_million": 20},
            {"model": "mine", "adapter_class": "none", "input_nanos_per_million": 100, "output_nanos_per_million": 500},
        ]
        discounts = [mine | {"basis_points": 1000}]
        prices = {"currency": "usd", "entries": entries, "discounts": discounts}
        assert (await operator.post("/prices", json=prices)).status_code == 200
        first, second = (await mia.get(f"{acme}/models")).json()["data"]
        assert (first["price"], first["adapter_price"]) == (second["adapter_price"], second["adapter_price"])
        assert first["price"] == {
            "currency": "usd",
            "input_nanos_per_million": 180,
            "cached_input_nanos_per_million": 18,
            "output_nanos_per_million": 720,
        }
        assert second["price"]["output_nanos_per_million"] == 450
        for path in ("/pools", "/replicas", "/hosts"):
            assert (await mia.get(path)).status_code == 403
        assert (await mia.get(f"/projects/{globex}/models")).status_code == 404
