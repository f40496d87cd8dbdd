"""The bounds of the organization's own keys: their owners, scopes, networks and expiry."""

from __future__ import annotations

import time

import httpx

from tests.gateway.admin_server import AdminServer


async def test_an_operators_key_never_does_more_than_its_owner(server: AdminServer) -> None:
    await server.user("ann@example.com", "admin")
    async with server.person("ann@example.com") as ann:
        made = (await ann.post("/admin_api_keys", json={"name": "ci"})).json()
    assert made["owner"]["user"]["email"] == "ann@example.com"
    async with server.client(made["value"]) as ci:
        assert (await ci.get("/projects")).status_code == 200
        assert (await ci.post("/suspend")).status_code == 403, "only an owner suspends the organization"
        second = (await ci.post("/admin_api_keys", json={"name": "from ci"})).json()
        assert second["owner"]["user"]["email"] == "ann@example.com"


async def test_a_key_never_gives_more_than_itself(server: AdminServer) -> None:
    await server.user("ann@example.com", "owner")
    soon, later = int(time.time()) + 1000, int(time.time()) + 2000
    narrow = {"scopes": ["admin_write"], "expires_at": soon, "ip_allowlist": ["127.0.0.0/8"]}
    async with server.person("ann@example.com") as ann:
        made = (await ann.post("/admin_api_keys", json={"name": "ci"} | narrow)).json()
        assert made["ip_allowlist"] == ["127.0.0.0/8"]
        (row, *_) = (await ann.get("/audit_logs")).json()["data"]
        assert row["admin_api_key.created"]["after"]["ip_allowlist"] == ["127.0.0.0/8"]
    async with server.client(made["value"]) as ci:
        for change, status, param in [
            ({"scopes": ["admin_read", "admin_write"]}, 403, None),
            ({"scopes": ["admin_read"]}, 403, None),
            ({"expires_at": None}, 400, "expires_at"),
            ({"expires_at": later}, 400, "expires_at"),
            ({"ip_allowlist": None}, 400, "ip_allowlist"),
            ({"ip_allowlist": ["127.0.0.1/32", "10.0.0.0/8"]}, 400, "ip_allowlist"),
            ({"ip_allowlist": ["::/0"]}, 400, "ip_allowlist"),
            ({"ip_allowlist": ["127.0.0.1/8"]}, 400, "ip_allowlist[0]"),
        ]:
            reply = await ci.post("/admin_api_keys", json={"name": "more"} | narrow | change)
            assert (reply.status_code, reply.json()["error"]["param"]) == (status, param), (change, reply.text)
        within = narrow | {"expires_at": soon - 1, "ip_allowlist": ["127.0.0.1/32"]}
        assert (await ci.post("/admin_api_keys", json={"name": "less"} | within)).status_code == 200


async def test_an_operators_key_works_from_its_networks_alone(server: AdminServer, operator: httpx.AsyncClient) -> None:
    body = {"name": "elsewhere", "ip_allowlist": ["192.0.2.0/24"]}
    made = (await operator.post("/admin_api_keys", json=body)).json()
    async with server.client(made["value"]) as elsewhere:
        reply = await elsewhere.get("/projects")
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "ip_not_allowed")


async def test_nobody_revokes_a_key_that_does_more_than_they_may(
    server: AdminServer, operator: httpx.AsyncClient
) -> None:
    for role in ("owner", "admin"):
        await server.user(f"{role}@example.com", role)
    async with server.person("owner@example.com") as owner, server.person("admin@example.com") as admin:
        keys = [
            (await caller.post("/admin_api_keys", json={"name": "ci"})).json()["id"]
            for caller in (operator, owner, admin)
        ]
        replies = [await admin.delete(f"/admin_api_keys/{key}") for key in keys]
        assert [reply.status_code for reply in replies] == [403, 403, 200]
        replies = [await owner.delete(f"/admin_api_keys/{key}") for key in keys]
        assert [reply.status_code for reply in replies] == [200, 200, 200]
