"""Every route of the admin API, found in the application's own table, against every kind of caller."""

from __future__ import annotations

import httpx

from tests.gateway.admin.access.cast import Cast, asked_by, expected
from tests.gateway.admin_server import AdminServer


async def test_every_role_reaches_what_it_may_and_nothing_else(cast: Cast, full: bool) -> None:
    assert len(cast.routes) > 50
    wrong = []
    for route, callers in asked_by(cast.callers, cast.routes, full):
        body = {"surprise": 1} if route.access and route.access.body else None
        for who in callers:
            reply = await cast.call(who, route, body)
            if reply.status_code not in expected(who, route):
                wrong.append(f"{who}: {route} answers {reply.status_code}, not {expected(who, route)}: {reply.text}")
            if reply.status_code == 400 and body:
                assert reply.json()["error"]["param"] == "surprise", (who, str(route))
    assert wrong == []


async def test_a_member_sees_the_projects_they_are_in(cast: Cast, server: AdminServer) -> None:
    for who, names in [
        ("viewer of acme", ["acme"]),
        ("viewer of globex", ["globex"]),
        ("viewer of organization", ["acme", "globex"]),
    ]:
        listed = (await cast.callers[who].get("/projects")).json()["data"]
        assert [project["name"] for project in listed] == names
    assert (await cast.callers["viewer of acme"].get("/projects", params={"name": "globex"})).json()["data"] == []


async def test_nobody_raises_anybody_above_themselves(cast: Cast, operator: httpx.AsyncClient, acme: str) -> None:
    users = {user["email"]: user["id"] for user in (await operator.get("/users", params={"limit": 100})).json()["data"]}
    admin, member = cast.callers["admin of organization"], cast.callers["admin of acme"]
    owner_id = users["owner@organization.example.com"]
    for caller, method, path, body in [
        (admin, "POST", f"/users/{users['admin@organization.example.com']}", {"role": "owner"}),
        (admin, "POST", "/users", {"email": "new@example.com", "role": "owner"}),
        (admin, "POST", f"/users/{owner_id}", {"role": "viewer"}),
        (admin, "POST", f"/users/{owner_id}/reset", {"password": "a long new password"}),
        (admin, "DELETE", f"/users/{owner_id}", None),
        (admin, "DELETE", f"/users/{owner_id}/logins", None),
        (admin, "POST", f"{acme}/users", {"user_id": owner_id, "role": "owner"}),
        (member, "POST", f"{acme}/users/{users['admin@acme.example.com']}", {"role": "owner"}),
        (member, "POST", f"{acme}/users/{users['owner@acme.example.com']}", {"role": "viewer"}),
        (member, "DELETE", f"{acme}/users/{users['owner@acme.example.com']}", None),
    ]:
        reply = await caller.request(method, path, json=body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "insufficient_permissions"), (path, body)


async def test_a_tenants_own_people_bound_its_keys_and_lift_nothing_of_the_operators(
    cast: Cast, operator: httpx.AsyncClient, acme: str
) -> None:
    of_project = {"unit": "tokens", "window": "day", "max": 1}
    theirs = (await operator.post(f"{acme}/limits", json=of_project)).json()
    key = (await operator.post(f"{acme}/api_keys", json={})).json()["id"]
    for who in ("owner of acme", "admin of acme"):
        caller = cast.callers[who]
        for method, path, body in [
            ("POST", f"{acme}/limits", of_project | {"max": 2}),
            ("POST", f"{acme}/limits", of_project | {"unit": "concurrency", "window": "none"}),
            ("DELETE", f"{acme}/limits/{theirs['id']}", None),
            ("POST", f"{acme}/rate_limits/rl-tiny", {"max_requests_per_1_minute": 100}),
            ("POST", acme, {"name": "renamed"}),
            ("POST", f"{acme}/suspend", None),
            ("POST", f"{acme}/resume", None),
            ("POST", f"{acme}/archive", None),
        ]:
            reply = await caller.request(method, path, json=body)
            assert (reply.status_code, reply.json()["error"]["code"]) == (403, "insufficient_permissions"), (who, path)
        mine = await caller.post(f"{acme}/limits", json=of_project | {"api_key_id": key})
        assert (mine.status_code, mine.json()["scope"]) == (200, "key"), mine.text
        assert (await caller.delete(f"{acme}/limits/{mine.json()['id']}")).status_code == 200
    assert (await operator.get(f"{acme}/limits")).json()["data"] == [theirs]


async def test_the_last_owner_stays(server: AdminServer, operator: httpx.AsyncClient) -> None:
    only = await server.user("only@example.com", "owner")
    for method, path, body in [
        ("DELETE", f"/users/{only['id']}", None),
        ("POST", f"/users/{only['id']}", {"role": "admin"}),
    ]:
        reply = await operator.request(method, path, json=body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (409, "last_owner")
    await server.user("second@example.com", "owner")
    assert (await operator.delete(f"/users/{only['id']}")).status_code == 200
