"""Pools whose servers of another maker agents start: what may be asked for, and the adapters they are started with."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from gateway.db.pool import Database
from gateway.db.pools import revisions
from tests.gateway.admin.test_pools import error_of, pool_events
from tests.gateway.bases import put_adapter
from tests.gateway.pools.acting_agent import DIGEST, Agent

POOL: dict[str, Any] = {"name": "llama", "engine": "llamacpp", "model": "demo"}


@pytest.fixture
async def agent(database: Database) -> Agent:
    agent = Agent(database)
    await agent.claim(0, "llamacpp")
    return agent


async def test_a_pool_of_a_program_that_no_host_has_is_refused_with_what_to_install(
    operator: httpx.AsyncClient, database: Database
) -> None:
    made = await operator.post("/pools", json=POOL)
    assert made.status_code == 200, "no host is known yet"
    await Agent(database).claim()
    refused = await operator.post("/pools", json=POOL | {"name": "other"})
    assert error_of(refused) == (400, "engine")
    message = refused.json()["error"]["message"]
    assert "no host (gpu-1) has llama.cpp's llama-server" in message
    assert "LORIKEET_LLAMA_SERVER" in message


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"engine": "sglang"}, "urls"),
        ({"model": ""}, "model"),
        ({"model": "Qwen/Qwen3-0.6B"}, "model"),
        ({"settings": {"allow_private": True}}, "settings.allow_private"),
        ({"settings": {"num_slots": 0}}, "settings.num_slots"),
        ({"urls": ["http://10.0.0.7:1"], "settings": {"num_slots": 2, "allow_private": True}}, "settings.num_slots"),
        ({"urls": ["http://llama.example.com"], "num_replicas": 2}, "num_replicas"),
    ],
    ids=str,
)
async def test_what_no_agent_can_start_is_refused(
    operator: httpx.AsyncClient, agent: Agent, change: dict[str, Any], param: str
) -> None:
    assert error_of(await operator.post("/pools", json=POOL | change)) == (400, param)


async def test_replicas_of_started_servers_are_scaled_and_changed_like_our_own_engines(
    operator: httpx.AsyncClient, agent: Agent
) -> None:
    made = (await operator.post("/pools", json=POOL | {"num_replicas": 2})).json()
    assert (made["is_managed"], made["urls"], made["num_wanted"]) == (True, [], 2)
    assert made["settings"] == {"preloaded_adapters": "true"}
    path = f"/pools/{made['id']}"
    assert (await operator.post(path, json={"num_replicas": 1})).json()["num_wanted"] == 1
    assert error_of(await operator.post(path, json={"urls": ["http://llama.example.com"]})) == (400, "urls")
    assert error_of(await operator.post(path, json={"model": "Qwen/Qwen3-0.6B"})) == (400, "model")
    assert error_of(await operator.post(f"{path}/key", json={"key": "sk-x"})) == (409, "pool_id")
    changed = (await operator.post(path, json={"settings": {"num_slots": 2}})).json()
    assert (changed["wanted_revision"], changed["is_managed"]) == (2, True)
    assert changed["settings"] == {"preloaded_adapters": "true", "num_slots": "2"}
    (host,) = (await operator.get("/hosts")).json()["data"]
    assert host["programs"] == ["llamacpp"]


async def test_a_pool_shows_which_adapters_wait_and_loading_them_is_a_new_revision(
    operator: httpx.AsyncClient, agent: Agent, acme: str, database: Database
) -> None:
    made = (await operator.post("/pools", json=POOL)).json()
    path, project_id = f"/pools/{made['id']}", acme.removeprefix("/projects/")
    async with database.acquire() as conn:
        await agent.prepare(made["id"])
        await put_adapter(conn, project_id, "old", digest="a" * 64, rank=8, size_bytes=1, base_digest=DIGEST)
        await put_adapter(conn, project_id, "new", digest="b" * 64, rank=8, size_bytes=1, base_digest=DIGEST)
        await conn.execute("UPDATE pool_revisions SET adapters = $1", ["a" * 64, "c" * 64])
    await agent.start(made["id"])
    found = (await operator.get(f"{path}/adapters")).json()
    assert [each["name"] for each in found["loaded"]] == ["acme:old@1"]
    assert [each["name"] for each in found["waiting"]] == ["acme:new@1"]
    assert (found["num_removed"], found["num_replicas"], found["rollout"]) == (1, 1, "side by side")
    assert (await operator.get(path)).json()["wanted_revision"] == 1, "nothing is changed by asking"
    changed = (await operator.post(f"{path}/adapters")).json()
    assert (changed["revision"], changed["wanted_revision"]) == (1, 2)
    assert error_of(await operator.post(f"{path}/adapters")) == (409, None), "it is being prepared"
    assert await pool_events(operator) == ["pool.created", "pool.adapters_loaded"]
    async with database.acquire() as conn:
        (second, first) = await revisions.list_revisions(conn, made["id"])
        assert (second.starts_servers, second.driver, second.settings) == (True, "llamacpp", first.settings)
        await revisions.set_prepared(
            conn,
            made["id"],
            2,
            folder="/models/x",
            base_digest=DIGEST,
            num_bytes=1,
            adapters=["a" * 64, "b" * 64],
        )
        await conn.execute("UPDATE pools SET revision = 2")
    shown = (await operator.post(f"{path}/adapters")).json()
    assert (shown["waiting"], shown["num_removed"], shown["wanted_revision"]) == ([], 0, 2), "it has all of them"


async def test_servers_that_take_adapters_later_need_no_start_for_them(
    operator: httpx.AsyncClient, agent: Agent
) -> None:
    body = {"name": "own", "model": "demo"}
    made = (await operator.post("/pools", json=body)).json()
    assert made["is_managed"]
    assert error_of(await operator.get(f"/pools/{made['id']}/adapters")) == (409, "pool_id")
