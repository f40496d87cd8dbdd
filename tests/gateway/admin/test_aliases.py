"""Aliases over HTTP: an alias points at a version that is ready, and every move is recorded."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from gateway.db.pool import Database
from tests.gateway.bases import put_adapter

ALIAS = {"name": "support-bot", "adapter": "pirate", "version": 1}


@pytest.fixture
async def aliases(database: Database, acme: str) -> str:
    """Return the path of the aliases of a project whose adapter pirate has two versions and whose adapter poet has
    one."""
    project_id = acme.removeprefix("/projects/")
    async with database.acquire() as conn:
        for name, digest in (("pirate", "a"), ("pirate", "b"), ("poet", "c")):
            await put_adapter(conn, project_id, name, digest=digest * 64, rank=8, size_bytes=1)
    return f"{acme}/aliases"


async def events(operator: httpx.AsyncClient) -> list[tuple[str, Any, Any]]:
    """Return the type, the state before and the state after of each change of an alias, oldest first."""
    logs = (await operator.get("/audit_logs", params={"limit": 100})).json()["data"]
    told = [(log["type"], log[log["type"]]) for log in logs if log["type"].startswith("alias.")]
    return [(kind, what.get("before"), what.get("after")) for kind, what in reversed(told)]


async def test_an_alias_is_made_listed_moved_and_removed(operator: httpx.AsyncClient, aliases: str) -> None:
    made = (await operator.post(aliases, json=ALIAS)).json()
    assert made["object"] == "organization.project.alias"
    assert (made["name"], made["target_kind"], made["adapter"], made["version"]) == (
        "support-bot",
        "version",
        "pirate",
        1,
    )
    moved = (await operator.post(f"{aliases}/support-bot", json={"adapter": "poet", "version": 1})).json()
    assert moved == made | {"adapter": "poet", "moved_at": moved["moved_at"]}
    again = await operator.post(f"{aliases}/support-bot", json={"adapter": "poet", "version": 1})
    assert (again.status_code, again.json()) == (200, moved)
    assert (await operator.get(aliases)).json()["data"] == [moved]
    removed = await operator.delete(f"{aliases}/support-bot")
    assert removed.json()["deleted"] is True
    assert (await operator.get(aliases)).json()["data"] == []
    assert (await operator.delete(f"{aliases}/support-bot")).status_code == 404
    assert await events(operator) == [
        ("alias.created", None, made),
        ("alias.moved", made, moved),
        ("alias.deleted", moved, None),
    ]


async def test_a_wrong_alias_is_refused_by_its_field(operator: httpx.AsyncClient, aliases: str) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        *(({"name": name}, "name") for name in ("tiny", "Support", "a:b", "")),
        *(({"adapter": name}, "adapter") for name in ("nobody", "tiny:pirate", "a\0")),
        *(({"version": version}, "version") for version in (3, 0, None, "1")),
        ({"surprise": 1}, "surprise"),
    ]
    for change, param in wrong:
        reply = await operator.post(aliases, json=ALIAS | change)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text
    assert await events(operator) == []


async def test_a_name_is_taken_once(operator: httpx.AsyncClient, aliases: str) -> None:
    assert (await operator.post(aliases, json=ALIAS)).status_code == 200
    reply = await operator.post(aliases, json=ALIAS | {"version": 2})
    assert (reply.status_code, reply.json()["error"]["param"]) == (409, "name")
    assert (await operator.get(aliases)).json()["data"][0]["version"] == 1


async def test_a_version_that_is_not_ready_is_no_target(
    operator: httpx.AsyncClient, database: Database, aliases: str
) -> None:
    async with database.acquire() as conn:
        await conn.execute("UPDATE adapter_versions SET state = 'retired' WHERE digest = $1", "a" * 64)
    reply = await operator.post(aliases, json=ALIAS)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "version")


async def test_the_name_of_a_removed_adapters_alias_is_free(
    operator: httpx.AsyncClient, acme: str, aliases: str
) -> None:
    await operator.post(aliases, json=ALIAS)
    await operator.delete(f"{acme}/adapters/pirate")
    assert (await operator.get(aliases)).json()["data"] == []
    reply = await operator.post(aliases, json=ALIAS | {"adapter": "poet"})
    assert (reply.status_code, reply.json()["adapter"]) == (200, "poet")


async def test_aliases_come_in_pages(operator: httpx.AsyncClient, aliases: str) -> None:
    for number in range(5):
        await operator.post(aliases, json=ALIAS | {"name": f"bot-{number}"})
    names, after = [], {}
    for _ in range(3):
        page = (await operator.get(aliases, params={"limit": 2} | after)).json()
        names += [alias["name"] for alias in page["data"]]
        after = {"after": page["last_id"]}
    assert (names, page["has_more"]) == ([f"bot-{number}" for number in range(5)], False)


async def test_a_purged_project_has_no_alias(operator: httpx.AsyncClient, database: Database, aliases: str) -> None:
    from gateway.db.organization.projects import purge_project

    await operator.post(aliases, json=ALIAS)
    async with database.transaction() as conn:
        await purge_project(conn, aliases.split("/")[2])
        assert await conn.fetchval("SELECT count(*) FROM model_aliases") == 0


async def test_aliases_end_with_their_adapter(
    operator: httpx.AsyncClient, acme: str, aliases: str, database: Database
) -> None:
    """An alias that was only hidden would count against the bound for ever."""
    await operator.post(aliases, json=ALIAS)
    await operator.delete(f"{acme}/adapters/pirate")
    async with database.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM model_aliases") == 0
