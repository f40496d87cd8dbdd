"""Every change is in the audit log with its author, before and after; tampering with the log is found out."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import asyncpg
import httpx
import pytest

from gateway.db.organization import audit
from gateway.db.organization.organizations import ensure_organization
from gateway.db.pool import Database
from tests.gateway.admin_server import PASSWORD, AdminServer

NUM_ROWS = 7
SPEND = {"threshold_amount": 100, "currency": "USD", "interval": "month"}
POOL = {"name": "qwen", "model": "demo"}
LIMIT = {"unit": "tokens", "window": "day", "max": 1}


async def events(operator: httpx.AsyncClient, **params: Any) -> list[dict[str, Any]]:
    reply = await operator.get("/audit_logs", params={"limit": 100} | params)
    assert reply.status_code == 200, reply.text
    rows: list[dict[str, Any]] = reply.json()["data"]
    return rows


async def test_every_change_leaves_one_row_and_a_refusal_or_a_repetition_none(
    server: AdminServer, operator: httpx.AsyncClient, acme: str
) -> None:
    user = await server.user("ann@example.com", "viewer")
    key = (await operator.post(f"{acme}/api_keys", json={})).json()["id"]
    account = (await operator.post(f"{acme}/service_accounts", json={"name": "bot"})).json()["id"]
    admin_key = (await operator.post("/admin_api_keys", json={"name": "ci"})).json()["id"]
    limit = (await operator.post(f"{acme}/limits", json=LIMIT | {"window": "month"})).json()["id"]
    webhook = (await operator.post("/webhooks", json={"url": "https://example.com/hook"})).json()["id"]
    pool = f"/pools/{(await operator.post('/pools', json=POOL)).json()['id']}"
    steps: list[tuple[str, str, dict[str, Any] | None, str | None]] = [
        ("POST", "/pools", POOL | {"name": "other"}, "pool.created"),
        ("POST", "/pools", POOL, None),
        ("POST", pool, {"num_replicas": 2}, "pool.scaled"),
        ("POST", pool, {"num_replicas": 2}, None),
        ("POST", pool, {"settings": {"max_num_seqs": 8}}, "pool.updated"),
        ("POST", pool, {"settings": {"max_num_seqs": "8"}}, None),
        ("POST", f"{pool}/cancel", None, None),
        ("DELETE", pool, None, None),
        ("POST", f"{pool}/drain", None, "pool.drained"),
        ("POST", f"{pool}/drain", None, None),
        ("DELETE", pool, None, "pool.removed"),
        ("DELETE", pool, None, None),
        ("POST", "/projects", {"name": "globex"}, "project.created"),
        ("POST", "/projects", {"name": "globex"}, None),
        ("POST", acme, {"name": "acme 2"}, "project.updated"),
        ("POST", acme, {"name": "acme 2"}, None),
        ("POST", f"{acme}/suspend", None, "project.suspended"),
        ("POST", f"{acme}/suspend", None, None),
        ("POST", f"{acme}/resume", None, "project.resumed"),
        ("POST", f"{acme}/api_keys/{key}", {"models": ["tiny"]}, "api_key.updated"),
        ("POST", f"{acme}/api_keys/{key}", {"models": ["tiny"]}, None),
        ("POST", f"{acme}/api_keys/{key}", {}, None),
        ("POST", f"{acme}/api_keys/{key}/suspend", None, "api_key.suspended"),
        ("POST", f"{acme}/api_keys/{key}/suspend", None, None),
        ("POST", f"{acme}/api_keys/{key}/resume", None, "api_key.resumed"),
        ("POST", f"{acme}/api_keys/{key}/rotate", None, "api_key.rotated"),
        ("DELETE", f"{acme}/api_keys/{key}", None, "api_key.deleted"),
        ("DELETE", f"{acme}/api_keys/{key}", None, None),
        ("POST", f"{acme}/api_keys/{key}/rotate", None, None),
        ("POST", f"{acme}/users", {"user_id": user["id"], "role": "viewer"}, "member.added"),
        ("POST", f"{acme}/users", {"user_id": user["id"], "role": "viewer"}, None),
        ("POST", f"{acme}/users/{user['id']}", {"role": "admin"}, "member.updated"),
        ("DELETE", f"{acme}/users/{user['id']}", None, "member.removed"),
        ("DELETE", f"{acme}/service_accounts/{account}", None, "service_account.deleted"),
        ("POST", f"/users/{user['id']}", {"role": "billing"}, "user.updated"),
        ("POST", f"/users/{user['id']}", {"role": "billing"}, None),
        ("POST", f"/users/{user['id']}/reset", {"password": PASSWORD}, "user.reset"),
        ("DELETE", f"/users/{user['id']}", None, "user.deleted"),
        ("DELETE", f"/admin_api_keys/{admin_key}", None, "admin_api_key.deleted"),
        ("POST", "/limits", LIMIT, "limit.created"),
        ("POST", "/limits", LIMIT, None),
        ("POST", "/limits", LIMIT | {"max": 2}, "limit.updated"),
        ("POST", f"{acme}/limits", LIMIT | {"unit": "bananas"}, None),
        ("POST", f"{acme}/limits", LIMIT, "limit.created"),
        ("DELETE", f"{acme}/limits/{limit}", None, "limit.deleted"),
        ("DELETE", f"{acme}/limits/{limit}", None, None),
        ("POST", f"{acme}/rate_limits/rl-tiny", {"max_requests_per_1_minute": 1}, "rate_limit.updated"),
        ("POST", f"{acme}/rate_limits/rl-tiny", {"max_requests_per_1_minute": 1}, None),
        ("POST", f"{acme}/rate_limits/rl-tiny", {"max_requests_per_1_minute": None}, "rate_limit.updated"),
        ("POST", f"{acme}/rate_limits/rl-none", {"max_requests_per_1_minute": 1}, None),
        ("POST", f"{acme}/spend_limit", SPEND, "limit.created"),
        ("POST", f"{acme}/spend_limit", SPEND, None),
        ("DELETE", f"{acme}/spend_limit", None, "limit.deleted"),
        ("DELETE", f"{acme}/spend_limit", None, None),
        ("POST", "/spend_limit", SPEND, "limit.created"),
        ("POST", "/spend_alerts", SPEND, None),
        ("POST", "/spend_alerts", SPEND | {"notification_channel": {"type": "webhook"}}, "limit.created"),
        ("POST", "/webhooks", {"url": "https://example.com/"}, "webhook.created"),
        ("POST", "/webhooks", {"url": "no url"}, None),
        ("POST", f"/webhooks/{webhook}/rotate", None, "webhook.rotated"),
        ("DELETE", f"/webhooks/{webhook}", None, "webhook.deleted"),
        ("DELETE", f"/webhooks/{webhook}", None, None),
        ("POST", "/suspend", None, "organization.suspended"),
        ("POST", "/resume", None, "organization.resumed"),
        ("POST", f"{acme}/archive", None, "project.archived"),
        ("POST", f"{acme}/archive", None, None),
        ("POST", f"{acme}/api_keys", {}, None),
        ("POST", f"{acme}/limits", LIMIT | {"max": 3}, None),
        ("POST", f"{acme}/rate_limits/rl-tiny", {"max_requests_per_1_minute": 3}, None),
    ]
    for method, path, body, event in steps:
        before = await events(operator)
        reply = await operator.request(method, path, json=body)
        after = await events(operator)
        new = after[: len(after) - len(before)]
        assert [row["type"] for row in new] == ([event] if event else []), (method, path, reply.text)
        if event:
            assert new[0]["request_id"] == reply.headers["x-request-id"]
            assert new[0]["actor"]["api_key"]["ip_address"] == "127.0.0.1"
    assert (await operator.get("/audit_logs/verify")).json()["intact"]


async def test_before_and_after_say_what_changed(operator: httpx.AsyncClient, acme: str) -> None:
    await operator.post(acme, json={"name": "renamed"})
    (row, *_) = await events(operator)
    change = row["project.updated"]
    assert (change["before"]["name"], change["after"]["name"]) == ("acme", "renamed")
    assert f"/projects/{change['id']}" == acme
    assert row["project"]["id"] == change["id"]


async def test_a_change_that_ends_keys_names_the_keys(
    server: AdminServer, operator: httpx.AsyncClient, acme: str
) -> None:
    async def last_change() -> Any:
        (row, *_) = await events(operator)
        return row[row["type"]]["before"]["revoked_api_key_ids"]

    ids = {}
    for name in ("ann", "bob"):
        user = await server.user(f"{name}@example.com", None)
        await operator.post(f"{acme}/users", json={"user_id": user["id"], "role": "admin"})
        async with server.person(f"{name}@example.com") as person:
            keys = [(await person.post(f"{acme}/api_keys", json={})).json()["id"] for _ in range(2)]
        ids[user["id"]] = sorted(keys)
    ann, bob = ids
    await operator.delete(f"{acme}/users/{ann}")
    assert await last_change() == ids[ann]
    await operator.delete(f"/users/{bob}")
    assert await last_change() == ids[bob]
    account, other = [(await operator.post(f"{acme}/service_accounts", json={"name": "bot"})).json() for _ in range(2)]
    await operator.delete(f"{acme}/service_accounts/{account['id']}")
    assert await last_change() == [account["api_key"]["id"]]
    await operator.post(f"{acme}/archive")
    assert await last_change() == [other["api_key"]["id"]]


async def test_nothing_secret_is_recorded(server: AdminServer, operator: httpx.AsyncClient, acme: str) -> None:
    secrets = [PASSWORD, server.operator_key]
    made = (await operator.post(f"{acme}/api_keys", json={})).json()
    secrets += [made["value"], (await operator.post(f"{acme}/api_keys/{made['id']}/rotate")).json()["value"]]
    secrets.append((await operator.post("/admin_api_keys", json={"name": "ci"})).json()["value"])
    account = (await operator.post(f"{acme}/service_accounts", json={"name": "bot"})).json()
    secrets.append(account["api_key"]["value"])
    secrets.append((await operator.post("/webhooks", json={"url": "https://example.com/"})).json()["secret"])
    await server.user("ann@example.com", "owner")
    async with server.person("ann@example.com") as ann:
        secrets += [ann.cookies["lorikeet_login"], ann.headers["x-csrf-token"]]
        begun = await ann.post(f"{server.url}/admin/v1/totp", json={"password": PASSWORD})
        secrets.append(begun.json()["secret"])
    async with server.services.database.acquire() as conn:
        log = "".join(
            row["row"] for row in await conn.fetch("SELECT row_to_json(audit_log)::text AS row FROM audit_log")
        )
    assert len(log) > 1000
    for secret in secrets:
        assert secret not in log
        # The public part of a key is meant to be shown; of its secret nothing is.
        assert secret[-30:] not in log


async def test_a_change_that_does_not_commit_is_not_recorded(database: Database) -> None:
    async with database.acquire() as conn:
        organization = await ensure_organization(conn, "default")
        with pytest.raises(RuntimeError, match="undone"):
            async with conn.transaction():
                await audit.record(conn, author(organization.id), "project.created", "proj_x")
                raise RuntimeError("undone")
        assert await conn.fetchval("SELECT count(*) FROM audit_log") == 0
        assert (await audit.verify(conn, organization.id)).broken is None


def author(organization_id: str) -> audit.Author:
    return audit.Author(
        organization_id=organization_id,
        kind="user",
        id="user_x",
        email="ann@example.com",
        address="192.0.2.1",
        request_id="req_x",
    )


@pytest.fixture
async def chain(database: Database) -> str:
    """Return the id of an organization whose log has `NUM_ROWS` rows."""
    async with database.acquire() as conn:
        organization = (await ensure_organization(conn, "default")).id
        for number in range(NUM_ROWS):
            async with conn.transaction():
                await audit.record(
                    conn, author(organization), "project.updated", f"proj_{number}", before={"n": number}, after=None
                )
    return organization


async def verdict(database: Database, organization_id: str) -> audit.ChainBreak | None:
    async with database.acquire() as conn:
        return (await audit.verify(conn, organization_id)).broken


@pytest.mark.parametrize(
    "statement", ["UPDATE audit_log SET address = ''", "DELETE FROM audit_log", "TRUNCATE audit_log"]
)
async def test_the_database_refuses_to_change_the_log(database: Database, chain: str, statement: str) -> None:
    async with database.acquire() as conn:
        with pytest.raises(asyncpg.RaiseError, match="append-only"):
            await conn.execute(statement)
    assert await verdict(database, chain) is None


EDITS = [
    "effective_at = effective_at - interval '1 microsecond'",
    "actor_id = 'user_y'",
    "actor_email = NULL",
    "address = '192.0.2.2'",
    "request_id = ''",
    "event = 'project.created'",
    "object_id = 'proj_9'",
    "project_id = ''",
    "before = NULL",
    "before = '{\"n\": 4}'",
    "after = '{}'",
    "id = 'audit_x'",
    "hash = sha256(hash)",
]

TAMPERING: list[tuple[str, int, str]] = [
    *((f"UPDATE audit_log SET {edit} WHERE sequence = 5", 5, "does not match its hash") for edit in EDITS),
    ("UPDATE audit_log SET previous_hash = sha256(hash) WHERE sequence = 5", 5, "does not follow"),
    ("DELETE FROM audit_log WHERE sequence = 5", 5, "row 5 is missing"),
    ("DELETE FROM audit_log WHERE sequence = 1", 1, "row 1 is missing"),
    (f"DELETE FROM audit_log WHERE sequence = {NUM_ROWS}", NUM_ROWS, f"row {NUM_ROWS} is missing"),
    ("DELETE FROM audit_log WHERE sequence > 3", 4, "row 4 is missing"),
    ("DELETE FROM audit_log", 1, "row 1 is missing"),
    ("DELETE FROM audit_heads", NUM_ROWS + 1, "the head was changed"),
    ("UPDATE audit_heads SET sequence = sequence + 1", NUM_ROWS + 1, "the head was changed"),
    (
        "UPDATE audit_log SET sequence = CASE sequence WHEN 3 THEN 104 ELSE 103 END WHERE sequence IN (3, 4);"
        "UPDATE audit_log SET sequence = sequence - 100 WHERE sequence > 100",
        3,
        "does not follow",
    ),
    (
        "INSERT INTO audit_log SELECT organization_id, 8, 'audit_x', effective_at, actor_kind, actor_id, actor_email,"
        " address, request_id, event, object_id, project_id, before, after, hash, hash FROM audit_log"
        " WHERE sequence = 7",
        8,
        "does not match its hash",
    ),
]


RETENTION = """
    ALTER TABLE audit_log DISABLE TRIGGER audit_log_is_append_only;
    CREATE TABLE kept_log AS TABLE audit_log;
    CREATE TABLE kept_heads AS TABLE audit_heads
"""
RESTORE = """
    TRUNCATE audit_log, audit_heads;
    INSERT INTO audit_log TABLE kept_log;
    INSERT INTO audit_heads TABLE kept_heads
"""


async def test_tampering_is_named_at_the_first_row_that_does_not_hold(database: Database, chain: str) -> None:
    async with database.acquire() as conn:
        await conn.execute(RETENTION)
        for statement, sequence, reason in TAMPERING:
            assert await verdict(database, chain) is None
            await conn.execute(statement)
            broken = await verdict(database, chain)
            assert broken is not None, statement
            assert (broken.sequence, reason in broken.reason) == (sequence, True), (statement, broken)
            await conn.execute(RESTORE)


async def test_the_hash_is_what_the_documentation_says(database: Database, chain: str) -> None:
    """The hash is computed with the standard library alone, as an auditor would compute it."""
    import hashlib

    async with database.acquire() as conn:
        rows = await conn.fetch(
            "SELECT *, (extract(epoch FROM effective_at) * 1000000)::bigint AS at_us FROM audit_log ORDER BY sequence"
        )
    previous = bytes(32)
    for row in rows:
        columns = [row["at_us"] if name == "effective_at" else row[name] for name in list(row.keys())[:14]]
        text = json.dumps(columns, separators=(",", ":"), ensure_ascii=False)
        previous = hashlib.sha256(previous + text.encode()).digest()
        assert previous == row["hash"]


async def test_organizations_have_chains_of_their_own(database: Database, chain: str) -> None:
    async with database.acquire() as conn:
        other = (await ensure_organization(conn, "other")).id
        async with conn.transaction():
            await audit.record(conn, author(other), "project.created", "proj_x")
        assert await conn.fetchval("SELECT sequence FROM audit_log WHERE organization_id = $1", other) == 1
    assert await verdict(database, other) is None


FILTERS: list[tuple[dict[str, str], Callable[[dict[str, Any]], bool]]] = [
    ({"event_types[]": "project.created"}, lambda row: row["type"] == "project.created"),
    ({"actor_emails[]": "ann@example.com"}, lambda row: row["actor"]["type"] == "session"),
    ({"effective_at[gte]": "9999999999"}, lambda row: False),
    ({"effective_at[lt]": "9999999999"}, lambda row: True),
]


async def test_the_log_is_paged_and_filtered(server: AdminServer, operator: httpx.AsyncClient, acme: str) -> None:
    await server.user("ann@example.com", "owner")
    async with server.person("ann@example.com") as ann:
        await ann.post("/projects", json={"name": "globex"})
    everything = await events(operator)
    assert [row["sequence"] for row in everything] == list(range(len(everything), 0, -1))
    for params, wanted in FILTERS:
        assert await events(operator, **params) == [row for row in everything if wanted(row)], params
    project_id = acme.removeprefix("/projects/")
    assert [row["type"] for row in await events(operator, **{"project_ids[]": project_id})] == ["project.created"]
    assert [row["type"] for row in await events(operator, **{"resource_ids[]": project_id})] == ["project.created"]
    paged: list[dict[str, Any]] = []
    params: dict[str, Any] = {"limit": 2}
    while True:
        page = (await operator.get("/audit_logs", params=params)).json()
        paged += page["data"]
        if not page["has_more"]:
            break
        params["after"] = page["last_id"]
    assert paged == everything


async def test_owners_and_admins_of_a_project_see_its_changes_alone(
    server: AdminServer, operator: httpx.AsyncClient, acme: str
) -> None:
    project_id = acme.removeprefix("/projects/")
    globex = (await operator.post("/projects", json={"name": "globex"})).json()["id"]
    roles = {"owner": [project_id], "admin": [project_id], "viewer": None}
    for role in roles:
        user = await server.user(f"{role}@acme.example.com", None)
        await operator.post(f"{acme}/users", json={"user_id": user["id"], "role": role})
    await operator.post(acme, json={"log_content_days": 7})
    everything = await events(operator)
    own = [row for row in everything if row["project"] == {"id": project_id}]
    other = next(row for row in everything if row["project"] == {"id": globex})
    async with server.person("viewer@acme.example.com") as viewer:
        assert (await viewer.get("/audit_logs")).status_code == 403
    for role in ("owner", "admin"):
        async with server.person(f"{role}@acme.example.com") as person:
            made = (await person.post(f"{acme}/api_keys", json={"name": role})).json()["id"]
            seen = await events(person)
            assert (seen[0]["type"], seen[0]["api_key.created"]["id"]) == ("api_key.created", made)
            assert seen[0]["actor"]["session"]["ip_address"] == "127.0.0.1", "a colleague's"
            rest = [row for row in seen if row["actor"]["type"] == "api_key"]
            assert [row["id"] for row in rest] == [row["id"] for row in own], "the operator's changes too"
            assert "project.updated" in {row["type"] for row in rest}
            assert {row["actor"]["api_key"]["ip_address"] for row in rest} == {""}
            assert {(row["sequence"], row["hash"]) for row in seen} == {(None, None)}
            assert await events(person, **{"project_ids[]": globex}) == []
            assert await events(person, **{"resource_ids[]": other["project.created"]["id"]}) == []
            unknown = await person.get("/audit_logs", params={"after": other["id"]})
            assert unknown.status_code == 400
            assert (await person.get("/audit_logs/verify")).status_code == 403
