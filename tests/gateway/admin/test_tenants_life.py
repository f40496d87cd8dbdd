"""Keys are narrowed, rotated and suspended, service accounts own them, and a deleted tenant leaves only its ledger."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.content.purge import Purger
from gateway.db.ledger.usage import list_usage_events, write_usage_events
from gateway.domain.errors import GatewayError, InvalidApiKey, PermissionDenied, Suspended
from tests.gateway.admin_server import AdminServer, write_adapter
from tests.gateway.db.test_tenant_isolation import usage_event
from tests.patience import PATIENCE_S


async def refusal_of_key(server: AdminServer, key: str, address: str = "127.0.0.1") -> type[GatewayError] | None:
    try:
        await server.services.authenticator.authenticate(f"Bearer {key}", address)
    except GatewayError as error:
        return type(error)
    return None


async def wait_for_refusal(server: AdminServer, key: str, wanted: type[GatewayError] | None) -> None:
    """Wait until a key is refused with this error, or accepted where `wanted` is None."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if await refusal_of_key(server, key) is wanted:
                return
            await asyncio.sleep(0.005)


async def make_key(operator: httpx.AsyncClient, project: str, **fields: Any) -> dict[str, Any]:
    reply = await operator.post(f"{project}/api_keys", json=fields)
    assert reply.status_code == 200, reply.text
    key: dict[str, Any] = reply.json()
    return key


async def test_a_rotated_key_keeps_its_id_and_has_two_secrets_until_the_grace_ends(
    server: AdminServer, operator: httpx.AsyncClient, acme: str
) -> None:
    key = await make_key(operator, acme, name="app")
    assert await refusal_of_key(server, key["value"]) is None
    path = f"{acme}/api_keys/{key['id']}"
    rotated = (await operator.post(f"{path}/rotate", json={"grace_seconds": 60})).json()
    assert (rotated["id"], rotated["name"]) == (key["id"], "app")
    assert rotated["previous_secret_expires_at"] is not None
    for secret in (key["value"], rotated["value"]):
        principal = await server.services.authenticator.authenticate(f"Bearer {secret}")
        assert principal.api_key_id == key["id"]
    third = (await operator.post(f"{path}/rotate", json={"grace_seconds": 60})).json()
    await wait_for_refusal(server, key["value"], InvalidApiKey)
    assert [await refusal_of_key(server, secret["value"]) for secret in (rotated, third)] == [None, None]
    fourth = (await operator.post(f"{path}/rotate", json={"grace_seconds": 0})).json()
    await wait_for_refusal(server, third["value"], InvalidApiKey)
    await operator.delete(path)
    await wait_for_refusal(server, fourth["value"], InvalidApiKey)


async def test_an_old_secret_ends_by_itself_even_where_it_is_cached(
    server: AdminServer, operator: httpx.AsyncClient, acme: str
) -> None:
    key = await make_key(operator, acme)
    await operator.post(f"{acme}/api_keys/{key['id']}/rotate", json={"grace_seconds": 1})
    await wait_for_refusal(server, key["value"], InvalidApiKey)


async def test_suspension_says_what_is_suspended_and_ends(
    server: AdminServer, operator: httpx.AsyncClient, acme: str
) -> None:
    key = await make_key(operator, acme)
    assert await refusal_of_key(server, key["value"]) is None
    for path, what in ((f"{acme}/api_keys/{key['id']}", "API key"), (acme, "project"), ("", "organization")):
        assert (await operator.post(f"{path}/suspend")).status_code == 200
        await wait_for_refusal(server, key["value"], Suspended)
        with pytest.raises(Suspended, match=f"This {what} is suspended"):
            await server.services.authenticator.authenticate(f"Bearer {key['value']}")
        assert (await operator.post(f"{path}/resume")).status_code == 200
        await wait_for_refusal(server, key["value"], None)


async def test_a_key_works_from_its_networks_alone(server: AdminServer, operator: httpx.AsyncClient, acme: str) -> None:
    key = await make_key(operator, acme, ip_allowlist=["192.0.2.0/24", "2001:db8::/32"])
    good, bad = ["192.0.2.200", "::ffff:192.0.2.1", "2001:db8::1"], ["192.0.3.1", "127.0.0.1", "", "2001:db9::1"]
    assert [await refusal_of_key(server, key["value"], address) for address in good] == [None] * 3
    assert [await refusal_of_key(server, key["value"], address) for address in bad] == [PermissionDenied] * 4
    await operator.post(f"{acme}/api_keys/{key['id']}", json={"ip_allowlist": None})
    await wait_for_refusal(server, key["value"], None)


WRONG_LISTS: list[tuple[dict[str, Any], str]] = [
    ({"ip_allowlist": ["10.0.0.0/8", "10.0.0.1/8"]}, "ip_allowlist[1]"),
    ({"ip_allowlist": ["anywhere"]}, "ip_allowlist[0]"),
    ({"ip_allowlist": []}, "ip_allowlist"),
    ({"models": ["a\nb"]}, "models[0]"),
    ({"models": [""]}, "models[...]"),
    ({"service_account_id": "svc_unknown"}, "service_account_id"),
]


async def test_wrong_list_entries_are_refused_by_their_position(operator: httpx.AsyncClient, acme: str) -> None:
    for body, param in WRONG_LISTS:
        reply = await operator.post(f"{acme}/api_keys", json=body)
        assert reply.status_code == 400, body
        assert reply.json()["error"]["param"].startswith(param.removesuffix("[...]")), reply.text


async def test_fields_that_a_change_leaves_out_keep_their_values(operator: httpx.AsyncClient, acme: str) -> None:
    key = await make_key(operator, acme, name="app", models=["tiny"], ip_allowlist=["10.0.0.0/8"])
    changed = (await operator.post(f"{acme}/api_keys/{key['id']}", json={"name": "new"})).json()
    assert (changed["name"], changed["models"], changed["ip_allowlist"]) == ("new", ["tiny"], ["10.0.0.0/8"])
    changed = (await operator.post(f"{acme}/api_keys/{key['id']}", json={"models": None})).json()
    assert (changed["name"], changed["models"]) == ("new", None)


async def test_a_service_accounts_keys_end_with_it(server: AdminServer, operator: httpx.AsyncClient, acme: str) -> None:
    account = (await operator.post(f"{acme}/service_accounts", json={"name": "bot"})).json()
    second = await make_key(operator, acme, service_account_id=account["id"])
    assert second["owner"]["service_account"] == {
        "id": account["id"],
        "name": "bot",
        "object": "organization.project.service_account",
    }
    secrets = [account["api_key"]["value"], second["value"]]
    assert [await refusal_of_key(server, secret) for secret in secrets] == [None, None]
    assert (await operator.delete(f"{acme}/service_accounts/{account['id']}")).status_code == 200
    for secret in secrets:
        await wait_for_refusal(server, secret, InvalidApiKey)
    assert (await operator.get(f"{acme}/service_accounts")).json()["data"] == []


async def test_a_persons_keys_end_with_their_membership_and_their_account(
    server: AdminServer, operator: httpx.AsyncClient, acme: str
) -> None:
    user = await server.user("ann@example.com", None)
    await operator.post(f"{acme}/users", json={"user_id": user["id"], "role": "admin"})
    async with server.person("ann@example.com") as ann:
        key = await make_key(ann, acme)
    assert key["owner"]["user"]["email"] == "ann@example.com"
    await operator.delete(f"{acme}/users/{user['id']}")
    await wait_for_refusal(server, key["value"], InvalidApiKey)


async def test_a_persons_keys_are_listed_for_those_who_may_read_them(
    server: AdminServer, operator: httpx.AsyncClient, acme: str
) -> None:
    """Keys of all tenants are listed page by page; operators' keys, the last one here, are listed for callers who
    may read them."""
    globex = f"/projects/{(await operator.post('/projects', json={'name': 'globex'})).json()['id']}"
    path = f"/users/{(await server.user('ann@example.com', 'admin'))['id']}/api_keys"
    assert (await operator.get(path)).json()["data"] == []
    async with server.person("ann@example.com") as ann:
        owned = [await make_key(ann, project, name=name) for project, name in ((acme, "app"), (globex, "batch"))]
        owned.append((await ann.post("/admin_api_keys", json={"name": "ci"})).json())
        account = (await ann.post(f"{acme}/service_accounts", json={"name": "bot"})).json()
        assert (await ann.delete(f"{globex}/api_keys/{owned[1]['id']}")).status_code == 200
    assert account["api_key"]["id"] not in [key["id"] for key in owned]

    found, after = [], None
    while True:
        page = (await operator.get(path, params={"limit": 1} | ({"after": after} if after else {}))).json()
        found += page["data"]
        if not page["has_more"]:
            break
        after = page["last_id"]
    assert [(key["id"], key["project_id"], key["name"]) for key in found] == [
        (owned[0]["id"], acme.removeprefix("/projects/"), "app"),
        (owned[1]["id"], globex.removeprefix("/projects/"), "batch"),
        (owned[2]["id"], None, "ci"),
    ]
    assert [key["redacted_value"] for key in found] == [key["redacted_value"] for key in owned]
    assert [key["revoked_at"] is None for key in found] == [True, False, True]
    assert not any(secret["value"] in str(found) for secret in owned)

    for role in ("viewer", "billing"):
        await server.user(f"{role}@example.com", role)
    async with server.person("viewer@example.com") as viewer, server.person("billing@example.com") as billing:
        assert (await viewer.get(path)).json()["data"] == found[:2]
        for key_id in (owned[2]["id"], "key_unknown"):
            reply = await viewer.get(path, params={"after": key_id})
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, "after")
        assert (await billing.get(path)).status_code == 403


async def test_a_demoted_persons_project_keys_shrink_with_them(
    server: AdminServer, operator: httpx.AsyncClient, acme: str
) -> None:
    async def becomes_able(secret: str, scopes: set[str], permissions: set[str]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                principal = await server.services.authenticator.authenticate(f"Bearer {secret}")
                if (principal.scopes, principal.permissions) == (scopes, permissions):
                    return
                await asyncio.sleep(0.005)

    both, adapters = {"inference", "adapters"}, {"adapters.read", "adapters.write"}
    member = await server.user("ann@example.com", None)
    await operator.post(f"{acme}/users", json={"user_id": member["id"], "role": "admin"})
    async with server.person("ann@example.com") as ann:
        key = await make_key(ann, acme, scopes=sorted(both))
    await becomes_able(key["value"], both, adapters)
    in_project: list[tuple[str, set[str]]] = [("viewer", {"adapters.read"}), ("billing", set()), ("admin", adapters)]
    for role, able in in_project:
        assert (await operator.post(f"{acme}/users/{member['id']}", json={"role": role})).status_code == 200
        await becomes_able(key["value"], both, able)

    staff = await server.user("bob@example.com", "admin")
    async with server.person("bob@example.com") as bob:
        key = await make_key(bob, acme, scopes=sorted(both))
    await becomes_able(key["value"], both, adapters)
    in_organization: list[tuple[str | None, set[str], set[str]]] = [
        ("viewer", both, {"adapters.read"}),
        (None, set(), set()),
    ]
    for organization_role, scopes, able in in_organization:
        await operator.post(f"/users/{staff['id']}", json={"role": organization_role})
        await becomes_able(key["value"], scopes, able)


async def test_a_demoted_persons_operator_key_shrinks_with_them(
    server: AdminServer, operator: httpx.AsyncClient
) -> None:
    user = await server.user("ann@example.com", "owner")
    async with server.person("ann@example.com") as ann:
        key = (await ann.post("/admin_api_keys", json={"name": "ci"})).json()["value"]
    async with server.client(key) as ci:
        assert (await ci.post("/projects", json={"name": "one"})).status_code == 200
        await server.user("second@example.com", "owner")
        await operator.post(f"/users/{user['id']}", json={"role": "viewer"})
        async with asyncio.timeout(PATIENCE_S):
            while (await ci.post("/projects", json={"name": "one"})).status_code != 403:
                pass
        assert (await ci.get("/projects")).status_code == 200
        await operator.delete(f"/users/{user['id']}")
        async with asyncio.timeout(PATIENCE_S):
            while (await ci.get("/projects")).status_code != 401:
                pass


async def test_a_deleted_tenant_is_dead_at_once_and_purged_after_its_retention(
    server: AdminServer, operator: httpx.AsyncClient, acme: str, tmp_path: Path
) -> None:
    project_id = acme.removeprefix("/projects/")
    folder = write_adapter(tmp_path / "pirate")
    with contextlib.ExitStack() as stack:
        files = {file.name: stack.enter_context(file.open("rb")) for file in folder.iterdir()}
        assert (await operator.post(f"{acme}/adapters", data={"name": "pirate"}, files=files)).status_code == 200
    key = await make_key(operator, acme)
    user = await server.user("ann@example.com", None)
    await operator.post(f"{acme}/users", json={"user_id": user["id"], "role": "viewer"})
    limit = {"unit": "tokens", "window": "day", "max": 100}
    for path in (f"{acme}/limits", "/limits"):
        assert (await operator.post(path, json=limit)).status_code == 200
    async with server.services.database.acquire() as conn:
        await write_usage_events(conn, [usage_event("req_1", project_id)])
    assert await refusal_of_key(server, key["value"]) is None

    purger = Purger(server.services.database)
    archived = (await operator.post(f"{acme}/archive", json={"retention_days": 1})).json()
    assert (archived["status"], archived["name"]) == ("archived", "acme")
    assert archived["purge_after"] - archived["archived_at"] == 86_400
    await wait_for_refusal(server, key["value"], InvalidApiKey)
    for method, path in [("POST", f"{acme}/api_keys"), ("POST", acme), ("POST", f"{acme}/suspend")]:
        reply = await operator.request(method, path, json={"name": "x"} if path == acme else None)
        assert (reply.status_code, reply.json()["error"]["code"]) == (409, "project_archived"), path
    assert (await operator.get("/projects")).json()["data"] == []
    listed = (await operator.get("/projects", params={"include_archived": "true"})).json()["data"]
    assert [project["name"] for project in listed] == ["acme"]
    assert (await operator.post("/projects", json={"name": "acme"})).status_code == 200, "the name is free"

    assert await purger.purge_all() == 0
    assert len(server.services.store.digests()) == 1
    async with server.services.database.acquire() as conn:
        await conn.execute("UPDATE projects SET purge_after = now() WHERE archived_at IS NOT NULL")
    assert await purger.purge_all() == 1
    assert await purger.purge_all() == 0
    assert len(await server.services.lifecycle.collector.collect()) == 1
    assert server.services.store.digests() == []
    assert len(server.engines.unloaded) == 1
    async with server.services.database.acquire() as conn:
        assert await list_usage_events(conn, project_id, 10) == [usage_event("req_1", project_id)]
        assert await conn.fetchval("SELECT count(*) FROM project_members WHERE project_id = $1", project_id) == 0
    assert (await operator.get(f"{acme}/limits")).json()["data"] == []
    assert len((await operator.get("/limits")).json()["data"]) == 1
    log = (await operator.get("/audit_logs", params={"limit": 100})).json()["data"]
    assert log[0]["type"] == "project.purged"
    assert log[0]["actor"]["type"] == "system"
