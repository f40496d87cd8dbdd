"""An adapter's settings over HTTP: set one by one, cleared by null, bounded as a request's fields are, recorded."""

from __future__ import annotations

import hashlib
from typing import Any

import httpx
import pytest

from gateway.db.organization.projects import purge_project
from gateway.db.pool import Database
from tests.gateway.admin_server import AdminServer
from tests.gateway.bases import put_adapter


@pytest.fixture
async def pirate(database: Database, acme: str) -> str:
    """Return the path of an adapter."""
    project_id = acme.removeprefix("/projects/")
    async with database.acquire() as conn:
        await put_adapter(conn, project_id, "pirate", digest="a" * 64, rank=8, size_bytes=1)
    return f"{acme}/adapters/pirate"


async def changes(operator: httpx.AsyncClient) -> list[dict[str, Any]]:
    logs = (await operator.get("/audit_logs", params={"limit": 100})).json()["data"]
    return [log["adapter.set"] for log in reversed(logs) if log["type"] == "adapter.set"]


async def test_what_is_named_changes_and_null_clears(operator: httpx.AsyncClient, pirate: str) -> None:
    async def set_to(body: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        reply = await operator.post(pirate, json=body)
        assert reply.status_code == 200, reply.text
        return reply.json()["defaults"], reply.json()["pinned"]

    assert await set_to({}) == ({}, False)
    assert await set_to({"defaults": {"temperature": 0, "max_tokens": 9}}) == (
        {"temperature": 0, "max_tokens": 9},
        False,
    )
    assert await set_to({"pinned": True}) == ({"temperature": 0, "max_tokens": 9}, True)
    assert await set_to({"defaults": {"temperature": None, "system_prompt": "be kind"}}) == (
        {"max_tokens": 9, "system_prompt": "be kind"},
        True,
    )
    assert await set_to({"pinned": True, "defaults": {"max_tokens": 9}}) == (
        {"max_tokens": 9, "system_prompt": "be kind"},
        True,
    )
    told = await changes(operator)
    assert len(told) == 3, "what changes nothing records nothing"
    digest = f"sha256:{hashlib.sha256(b'be kind').hexdigest()}"
    assert [change["after"]["defaults"] for change in told] == [change["before"]["defaults"] for change in told[1:]] + [
        {"max_tokens": 9, "system_prompt": digest}
    ], "the log outlasts the project's content"


WRONG: dict[str, Any] = {
    "temperature": 2.1,
    "top_p": -0.1,
    "top_k": -2,
    "min_p": 1.1,
    "presence_penalty": 3,
    "frequency_penalty": -3,
    "repetition_penalty": 0,
    "max_tokens": 0,
    "system_prompt": "a\0b",
    "seed": 1,
}


async def test_a_wrong_value_is_refused_by_its_field(operator: httpx.AsyncClient, pirate: str) -> None:
    bodies = [({"defaults": {name: value}}, f"defaults.{name}") for name, value in WRONG.items()]
    bodies += [({name: None}, name) for name in ("defaults", "pinned")]
    bodies += [({"pinned": 1}, "pinned"), ({"price_class": "x"}, "price_class")]
    for body, param in bodies:
        reply = await operator.post(pirate, json=body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text
    assert await changes(operator) == []


async def test_a_projects_own_key_sets_defaults_and_pins_nothing(
    server: AdminServer, operator: httpx.AsyncClient, acme: str, pirate: str
) -> None:
    key = (await operator.post(f"{acme}/api_keys", json={"scopes": ["adapters"]})).json()["value"]
    async with server.client(key) as owner:
        assert (await owner.post(pirate, json={"defaults": {"top_k": 5}})).status_code == 200
        for pinned in (True, False):
            refused = await owner.post(pirate, json={"pinned": pinned, "defaults": {"top_k": 6}})
            assert refused.status_code == 403
        assert (await owner.post(pirate, json={})).json()["defaults"] == {"top_k": 5}


async def test_settings_outlast_versions_and_go_with_the_project(
    operator: httpx.AsyncClient, database: Database, acme: str, pirate: str
) -> None:
    project_id = acme.removeprefix("/projects/")
    await operator.post(pirate, json={"defaults": {"system_prompt": "secret"}, "pinned": True})
    async with database.transaction() as conn:
        await put_adapter(conn, project_id, "pirate", digest="b" * 64, rank=8, size_bytes=1)
    assert (await operator.post(pirate, json={})).json()["defaults"] == {"system_prompt": "secret"}
    await operator.delete(pirate)
    async with database.transaction() as conn:
        await purge_project(conn, project_id)
        rows = await conn.fetch("SELECT defaults, pinned FROM adapters WHERE project_id = $1", project_id)
    assert [tuple(row) for row in rows] == [("{}", False)]
