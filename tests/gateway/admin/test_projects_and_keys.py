"""Tenants and their keys through the admin API: created, listed page by page, refused by name, revoked for good."""

from __future__ import annotations

import time
from typing import Any

import httpx

from gateway.domain.errors import InvalidApiKey
from tests.gateway.admin_server import AdminServer
from tests.installation.waiting import until


async def test_a_project_is_created_once_and_found_by_id_and_name(operator: httpx.AsyncClient) -> None:
    created = await operator.post("/projects", json={"name": "acme"})
    project = created.json()
    assert (created.status_code, project["object"], project["status"]) == (200, "organization.project", "active")
    again = await operator.post("/projects", json={"name": "acme"})
    assert (again.status_code, again.json()["error"]["param"]) == (409, "name")
    assert (await operator.get(f"/projects/{project['id']}")).json() == project
    assert (await operator.get("/projects", params={"name": "acme"})).json()["data"] == [project]
    assert (await operator.get("/projects", params={"name": "nobody"})).json()["data"] == []


async def test_lists_are_paged(operator: httpx.AsyncClient) -> None:
    names = [f"tenant-{number}" for number in range(5)]
    for name in names:
        await operator.post("/projects", json={"name": name})
    seen: list[str] = []
    params: dict[str, Any] = {"limit": 2}
    for has_more in (True, True, False):
        page = (await operator.get("/projects", params=params)).json()
        assert (page["object"], page["has_more"], page["last_id"]) == ("list", has_more, page["data"][-1]["id"])
        seen += [project["name"] for project in page["data"]]
        params["after"] = page["last_id"]
    assert seen == names


WRONG_QUERIES = [
    ({"limit": "0"}, "limit"),
    ({"limit": "101"}, "limit"),
    ({"limit": "many"}, "limit"),
    ({"after": "proj_unknown"}, "after"),
    ({"after": "\0"}, "after"),
    ({"order": "asc"}, "order"),
]


async def test_a_wrong_query_is_refused_by_name(operator: httpx.AsyncClient) -> None:
    for params, param in WRONG_QUERIES:
        reply = await operator.get("/projects", params=params)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), params


WRONG_PROJECTS = [
    (b"{}", "name"),
    (b'{"name": ""}', "name"),
    (b'{"name": " acme"}', "name"),
    (b'{"name": "a\\u0000b"}', "name"),
    (b'{"name": "acme\\n"}', "name"),
    (b'{"name": 7}', "name"),
    ('{"name": "ac\u202eme"}'.encode(), "name"),
    ('{"name": "ac\u200bme"}'.encode(), "name"),
    ('{"name": "ac\u2028me"}'.encode(), "name"),
    (b'{"name": "%s"}' % (b"x" * 65), "name"),
    (b'{"name": "acme", "organization_id": "org_other"}', "organization_id"),
    (b"not json", None),
    (b"[]", None),
]


async def test_a_wrong_project_is_refused_by_field(operator: httpx.AsyncClient) -> None:
    for body, param in WRONG_PROJECTS:
        reply = await operator.post("/projects", content=body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), body
        assert "regex" not in reply.json()["error"]["message"]
    assert (await operator.get("/projects")).json()["data"] == []


WRONG_KEYS: list[tuple[dict[str, Any], str]] = [
    ({"scopes": ["admin_write"]}, "scopes[0]"),
    ({"scopes": []}, "scopes"),
    ({"kind": "admin"}, "kind"),
    ({"project_id": "proj_other"}, "project_id"),
    ({"expires_at": 1}, "expires_at"),
]


async def test_a_key_cannot_be_given_more_than_its_project_has(operator: httpx.AsyncClient, acme: str) -> None:
    for body, param in WRONG_KEYS:
        reply = await operator.post(f"{acme}/api_keys", json=body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), body
    assert (await operator.get(f"{acme}/api_keys")).json()["data"] == []


async def test_a_key_lives_from_its_making_to_its_end(
    server: AdminServer, operator: httpx.AsyncClient, acme: str
) -> None:
    authenticate = server.services.authenticator.authenticate
    expires_at = int(time.time()) + 3600
    created = (await operator.post(f"{acme}/api_keys", json={"name": "app", "expires_at": expires_at})).json()
    principal = await authenticate(f"Bearer {created['value']}")
    assert (f"/projects/{principal.project_id}", principal.api_key_id) == (acme, created["id"])
    assert principal.scopes == {"inference"}

    listed = (await operator.get(f"{acme}/api_keys")).json()["data"]
    assert [(key["id"], key["expires_at"], key["revoked_at"]) for key in listed] == [(created["id"], expires_at, None)]
    assert created["value"] not in str(listed)
    assert (await operator.get(f"/api_keys/{created['id']}")).json() == listed[0]

    for _ in range(2):
        deleted = await operator.delete(f"{acme}/api_keys/{created['id']}")
        assert (deleted.status_code, deleted.json()["deleted"]) == (200, True)

    async def refused() -> bool:
        try:
            await authenticate(f"Bearer {created['value']}")  # answered from memory, it lets nothing else run
        except InvalidApiKey:
            return True
        return False

    await until(refused, "the revoked key stays good")
    assert (await operator.get(f"{acme}/api_keys")).json()["data"][0]["revoked_at"] is not None


async def test_a_key_is_revoked_through_its_own_project_only(operator: httpx.AsyncClient, acme: str) -> None:
    globex = (await operator.post("/projects", json={"name": "globex"})).json()["id"]
    key = (await operator.post(f"/projects/{globex}/api_keys")).json()
    reply = await operator.delete(f"{acme}/api_keys/{key['id']}")
    assert (reply.status_code, reply.json()["error"]["param"]) == (404, "key_id")
    assert (await operator.get(f"/api_keys/{key['id']}")).json()["revoked_at"] is None


async def test_a_body_over_the_cap_is_refused(operator: httpx.AsyncClient) -> None:
    assert (await operator.post("/projects", json={"name": "x" * 10_000})).status_code == 413
