"""Sharing over HTTP: off until the operator allows it, within the organization, and recorded."""

from __future__ import annotations

import httpx
import pytest

from gateway.db.organization.projects import purge_project
from gateway.db.pool import Database
from tests.gateway.admin_server import AdminServer
from tests.gateway.bases import put_adapter

DIGEST = "a" * 64


async def create_project(client: httpx.AsyncClient, name: str) -> str:
    return str((await client.post("/projects", json={"name": name})).json()["id"])


async def store_adapter(database: Database, project_id: str, name: str = "pirate") -> None:
    async with database.acquire() as conn:
        await put_adapter(conn, project_id, name, digest=DIGEST, rank=8, size_bytes=1)


@pytest.fixture
async def shares(database: Database, acme: str) -> str:
    """Store the adapter `pirate` of project acme; return the URL path of its shares."""
    await store_adapter(database, acme.removeprefix("/projects/"))
    return f"{acme}/adapters/pirate/shares"


@pytest.fixture
async def globex(operator: httpx.AsyncClient) -> str:
    """Return the id of another project."""
    return await create_project(operator, "globex")


async def test_an_adapter_is_shared_listed_and_unshared(operator: httpx.AsyncClient, shares: str, globex: str) -> None:
    assert (await operator.get(shares)).json()["data"] == []
    made = await operator.post(shares, json={"project_id": globex})
    assert made.status_code == 200, made.text
    share = made.json()
    assert (share["object"], share["adapter"], share["project_id"]) == (
        "organization.project.adapter.share",
        "pirate",
        globex,
    )
    assert (await operator.post(shares, json={"project_id": globex})).json() == share, "nothing changes"
    assert (await operator.get(shares)).json()["data"] == [share]
    ended = await operator.delete(f"{shares}/{globex}")
    assert (ended.status_code, ended.json()["deleted"]) == (200, True)
    assert (await operator.delete(f"{shares}/{globex}")).status_code == 404
    logs = (await operator.get("/audit_logs", params={"limit": 100})).json()["data"]
    told = [(log["type"], log[log["type"]]) for log in reversed(logs) if "shared" in log["type"]]
    assert [(kind, what.get("before"), what.get("after")) for kind, what in told] == [
        ("adapter.shared", None, share),
        ("adapter.unshared", share, None),
    ]


async def test_an_adapter_is_shared_only_with_another_active_project_of_the_organization(
    server: AdminServer, operator: httpx.AsyncClient, acme: str, shares: str
) -> None:
    archived = await create_project(operator, "archived")
    await operator.post(f"/projects/{archived}/archive", json={})
    async with server.client(await server.admin_key("admin_write", organization="other")) as other:
        foreign = await create_project(other, "foreign")
    told = set()
    for project_id in (archived, foreign, "proj_nobody"):
        reply = await operator.post(shares, json={"project_id": project_id})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "project_id")
        told.add(reply.text)
    assert len(told) == 1
    reply = await operator.post(shares, json={"project_id": acme.removeprefix("/projects/")})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "project_id")
    reply = await operator.post(f"{acme}/adapters/nobody/shares", json={"project_id": archived})
    assert reply.status_code == 404


async def test_two_adapters_of_one_name_are_not_shared_with_one_project(
    operator: httpx.AsyncClient, database: Database, acme: str, shares: str, globex: str
) -> None:
    initech = await create_project(operator, "initech")
    await store_adapter(database, initech)
    theirs = f"/projects/{initech}/adapters/pirate/shares"
    await operator.post(shares, json={"project_id": globex})
    reply = await operator.post(theirs, json={"project_id": globex})
    assert (reply.status_code, reply.json()["error"]["param"]) == (409, "project_id")
    await operator.delete(f"{acme}/adapters/pirate")
    assert (await operator.post(theirs, json={"project_id": globex})).status_code == 200, "the name is free"


async def test_an_adapters_own_people_neither_share_it_nor_see_with_whom(
    server: AdminServer, operator: httpx.AsyncClient, acme: str, shares: str, globex: str
) -> None:
    await operator.post(shares, json={"project_id": globex})
    owner = await server.user("owner@acme.example.com", None)
    await operator.post(f"{acme}/users", json={"user_id": owner["id"], "role": "owner"})
    async with server.person("owner@acme.example.com") as person:
        replies = [
            await person.get(shares),
            await person.post(shares, json={"project_id": globex}),
            await person.delete(f"{shares}/{globex}"),
        ]
    assert [reply.status_code for reply in replies] == [403] * 3
    assert all(globex not in reply.text for reply in replies)


@pytest.mark.parametrize("whose", ["owner", "borrower"])
async def test_a_purged_project_shares_nothing(
    operator: httpx.AsyncClient, database: Database, acme: str, shares: str, globex: str, whose: str
) -> None:
    await operator.post(shares, json={"project_id": globex})
    async with database.transaction() as conn:
        await purge_project(conn, acme.removeprefix("/projects/") if whose == "owner" else globex)
        assert await conn.fetchval("SELECT count(*) FROM adapter_shares") == 0
