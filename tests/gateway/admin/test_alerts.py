"""Alerts are shown to callers who may know of them, and search finds what the caller may see."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.backends.snapshot import EngineSnapshot
from gateway.db.ledger.journals import report_journal
from gateway.db.limits import alerts as alert_rows
from gateway.db.pool import Database
from gateway.metering.journal import JournalState
from tests.gateway.admin_server import AdminServer, serve_admin
from tests.gateway.bases import put_adapter
from tests.gateway.billing.books import NOW, Books, open_books
from tests.gateway.experiments.books_rows import make_experiment
from tests.patience import least

AWAY = EngineSnapshot(id="", model="tiny", state="unreachable", detail="no engine answers", since=5)


async def alerts(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    reply = await client.get("/alerts")
    assert reply.status_code == 200, reply.text
    found: list[dict[str, Any]] = reply.json()["data"]
    return found


async def make_member(
    server: AdminServer, project_id: str, email: str = "ann@acme.example.com", role: str = "viewer"
) -> str:
    user = await server.user(email, None)
    async with server.client(server.operator_key) as operator:
        await operator.post(f"/projects/{project_id}/users", json={"user_id": user["id"], "role": role})
    return email


async def test_where_all_is_well_there_is_no_alert(database: Database, tmp_path: Path) -> None:
    await open_books(database)
    async with serve_admin(database, tmp_path) as server, server.client(server.operator_key) as operator:
        assert await alerts(operator) == []


async def test_each_condition_has_one_alert_and_tenants_see_their_own(database: Database, tmp_path: Path) -> None:
    acme, globex = await open_books(database), await open_books(database, "globex")
    full = JournalState(True, 90, 100)
    async with (
        serve_admin(database, tmp_path, snapshots=[AWAY], journal=full) as server,
        server.client(server.operator_key) as operator,
    ):
        for books in (acme, globex):
            path = f"/projects/{books.project_id}"
            await operator.post(f"{path}/limits", json={"unit": "requests", "window": "day", "max": 2})
            await operator.post(f"{path}/limits", json={"unit": "tokens", "window": "day", "max": 1000})
            await operator.post(f"{path}/limits", json={"unit": "requests", "window": "minute", "max": 1})
            for name, days in (("old", 1), ("made for a day", 1), ("long", 30)):
                key = {"name": name, "expires_at": int(NOW.timestamp()) + 86_400 * days}
                assert (await operator.post(f"{path}/api_keys", json=key)).status_code == 200
            await books.write(*(books.event(f"req_{books.project_id}_{number}") for number in range(3)))
        async with database.acquire() as conn:
            await put_adapter(conn, acme.project_id, "pirate", digest="a" * 64, rank=2, size_bytes=1)
            await conn.execute(
                "INSERT INTO adapter_versions (adapter_id, version, digest, rank, size_bytes, state, source, reason)"
                " SELECT id, 2, repeat('b', 64), 2, 1, 'rejected', 'upload', 'not finite' FROM adapters"
            )
            await report_journal(conn, "gone", 4)
            await conn.execute("UPDATE journals SET heard_at = heard_at - interval '2 minutes'")
            await conn.execute("UPDATE api_keys SET created_at = created_at - interval '7 days' WHERE name = 'old'")
        webhook = (await operator.post("/webhooks", json={"url": "https://example.com/hook"})).json()["id"]
        async with database.acquire() as conn:
            await conn.execute("UPDATE webhooks SET last_failed_at = now(), last_error = '500' WHERE id = $1", webhook)

        told = await alerts(operator)
        assert [each["code"] for each in told] == [
            "engine_unreachable",
            "journals_lost",
            "journal_nearly_full",
            *["limit_exhausted"] * 2,
            "adapter_rejected",
            "webhook_failing",
            *["key_expires_soon"] * 2,
        ]
        assert "4 requests" in told[1]["title"] and "not finite" in told[5]["detail"]
        assert {each["project_id"] for each in told} == {None, acme.project_id, globex.project_id}
        assert all("'old'" in each["detail"] for each in told[-2:])

        async with server.person(await make_member(server, acme.project_id)) as ann:
            mine = await alerts(ann)
        assert [each["code"] for each in mine] == ["limit_exhausted", "adapter_rejected", "key_expires_soon"]
        assert {each["project_id"] for each in mine} == {acme.project_id}
        async with server.person(await make_member(server, acme.project_id, "bo@acme.example.com", "billing")) as bo:
            assert [each["code"] for each in await alerts(bo)] == ["limit_exhausted", "key_expires_soon"]


async def test_an_experiment_that_paused_itself_is_an_alert_of_its_project(database: Database, tmp_path: Path) -> None:
    acme = await open_books(database)
    await open_books(database, "globex")
    async with database.acquire() as conn:
        mine, _ = [await make_experiment(conn, project=name) for name in ("acme", "globex")]
        await conn.execute("UPDATE experiments SET state = 'paused'")
        why = {"metric": "error_rate", "arm": "warm", "at": 5, "text": "`warm` fails."}
        await conn.execute("UPDATE experiments SET why = $1", json.dumps(why))
    async with serve_admin(database, tmp_path) as server, server.client(server.operator_key) as operator:
        assert [each["code"] for each in await alerts(operator)] == ["experiment_paused"] * 2
        async with server.person(await make_member(server, acme.project_id)) as ann:
            (told,) = await alerts(ann)
        assert told["href"] == f"/admin/experiments/{acme.project_id}/{mine.id}" and "`warm` fails." in told["detail"]
        async with server.person(await make_member(server, acme.project_id, "bo@acme.example.com", "billing")) as bo:
            assert await alerts(bo) == []


async def test_a_limit_of_the_organization_leads_to_its_page(server: AdminServer, books: Books) -> None:
    async with server.client(server.operator_key) as operator:
        await operator.post("/limits", json={"unit": "requests", "window": "day", "max": 1})
        await books.write(books.event("req_a"))
        (full,) = await alerts(operator)
    assert (full["code"], full["href"]) == ("limit_exhausted", "/admin/system/limits")


NUM_LIMITS, MAX_LIMITS_S = 15_000, 0.06
_MANY_LIMITS = """
    WITH projects AS (
        INSERT INTO projects (id, organization_id, name)
        SELECT 'p' || n, $1, 'tenant ' || n FROM generate_series(1, 500) n RETURNING id
    ), adapters AS (
        INSERT INTO adapters (id, project_id, base_digest, name, current_version)
        SELECT 'a' || n || p.id, p.id, b.digest, 'a' || n, 1
        FROM projects p, bases b, generate_series(1, 4) n RETURNING id, project_id
    ), versions AS (
        INSERT INTO adapter_versions (adapter_id, version, digest, rank, size_bytes, state, source)
        SELECT id, 1, repeat(CASE WHEN id < 'a3' THEN 'a' ELSE 'b' END, 64), 8, 300,
               CASE WHEN id > 'a4' THEN 'rejected' ELSE 'ready' END, 'upload'
        FROM adapters
    ), gateways AS (INSERT INTO limit_gateways (id) VALUES ('g1'), ('g2') RETURNING id
    ), made AS (
        INSERT INTO limits (id, organization_id, project_id, model, unit, period, max, hard, alert_percents)
        SELECT 'lim_' || n, $1, CASE WHEN n > 30 THEN 'p' || (1 + n % 500) END, CASE WHEN n > 1500 THEN 'm' || n END,
               CASE WHEN n > 1500 THEN 'tokens' ELSE 'storage_bytes' END,
               CASE WHEN n > 1500 THEN (ARRAY['day', 'month', 'none'])[1 + n % 3] ELSE 'none' END, 700 + n,
               n % 2 = 0, CASE n % 3 WHEN 0 THEN '{}' WHEN 1 THEN '{70}' ELSE '{100,50}' END::integer[]
        FROM generate_series(1, $2::integer) n ON CONFLICT DO NOTHING RETURNING id, period, hard
    ), accounts AS (
        INSERT INTO limit_accounts (limit_id, window_start, settled)
        SELECT m.id, limit_window(m.period, now()) - d * interval '1 day', hashtext(m.id) & 16383
        FROM made m, generate_series(0, 2) d
    )
    INSERT INTO limit_leases (limit_id, window_start, gateway_id, amount)
    SELECT m.id, limit_window(m.period, now()), g.id, 400 FROM made m, gateways g WHERE m.hard
"""
_ONE_BY_ONE = """
    SELECT l.id, CASE l.unit WHEN 'storage_bytes' THEN stored_bytes(l.organization_id, l.project_id) ELSE
        (SELECT settled FROM limit_accounts a
         WHERE a.limit_id = l.id AND a.window_start = limit_window(l.period, now()))
        + (SELECT coalesce(sum(amount), 0)::bigint FROM limit_leases s
           WHERE s.limit_id = l.id AND s.window_start = limit_window(l.period, now())) END AS taken,
        l.max, coalesce((SELECT min(percent) FROM unnest(l.alert_percents) AS percent), 80) AS percent
    FROM limits l
"""


async def test_many_limits_are_looked_through_together(database: Database, full: bool) -> None:
    books = await open_books(database)
    async with database.acquire() as conn:
        async with conn.transaction():
            await conn.execute("SET LOCAL session_replication_role = replica")  # nobody is told of each
            await conn.execute(_MANY_LIMITS, books.organization_id, NUM_LIMITS)
        await conn.execute("ANALYZE")
        one_by_one = {row["id"]: row for row in await conn.fetch(_ONE_BY_ONE)}
        asked = (books.organization_id, None, 80, NUM_LIMITS)
        found = {row["id"]: row["taken"] for row in await conn.fetch(alert_rows._LIMITS, *asked)}
        assert found == {
            row["id"]: row["taken"] for row in one_by_one.values() if row["taken"] * 100 >= row["max"] * row["percent"]
        }
        assert 1000 < len(found) < len(one_by_one) > 12_000

        async def measure() -> float:
            nonlocal plan
            plan = [row[0] for row in await conn.fetch(f"EXPLAIN ANALYZE {alert_rows._LIMITS}", *asked)]
            return float(plan[-1].split()[2]) / 1e3

        plan: list[str] = []
        took_s = await least(measure, MAX_LIMITS_S)
    assert max(int(loops) for line in plan for loops in re.findall(r"loops=(\d+)", line)) < 100, plan
    assert took_s < MAX_LIMITS_S or not full


async def test_adapters_of_all_tenants_are_one_list_of_pages(database: Database, tmp_path: Path) -> None:
    tenants = [await open_books(database, name) for name in ("acme", "globex")]
    theirs = await open_books(database, "theirs", "other")
    async with database.acquire() as conn:
        for number in range(2):
            for each in (*tenants, theirs):
                await put_adapter(conn, each.project_id, f"bot-{number}", digest="a" * 64, rank=2, size_bytes=1)

    async def listed(client: httpx.AsyncClient) -> list[tuple[str, str]]:
        found, after = [], {}
        while True:
            page = (await client.get("/adapters", params={"limit": 3} | after)).json()
            found += [(each["project_name"], each["name"]) for each in page["data"]]
            if not page["has_more"]:
                return found
            after = {"after": page["last_id"]}

    async with serve_admin(database, tmp_path) as server, server.client(server.operator_key) as operator:
        in_turn = [(tenant, f"bot-{number}") for number in range(2) for tenant in ("acme", "globex")]
        assert await listed(operator) == in_turn
        last_id = (await operator.get("/adapters")).json()["last_id"]
        async with server.person(await make_member(server, tenants[0].project_id)) as ann:
            assert await listed(ann) == [("acme", "bot-0"), ("acme", "bot-1")]
            assert (await ann.get("/adapters", params={"after": last_id})).status_code == 400


@pytest.fixture
async def books(database: Database) -> Books:
    return await open_books(database)


async def found(client: httpx.AsyncClient, text: str) -> list[tuple[str, str]]:
    reply = await client.get("/search", params={"q": text})
    assert reply.status_code == 200, reply.text
    return [(each["kind"], each["name"]) for each in reply.json()["data"]]


async def test_things_are_found_by_what_people_know_of_them(server: AdminServer, books: Books) -> None:
    theirs = await open_books(books.database, "theirs-acme", "other")
    globex = await open_books(books.database, "globex")
    await books.write(books.event("req_acme"))
    await globex.write(globex.event("req_globex"))
    await theirs.write(theirs.event("req_theirs"))
    async with books.database.acquire() as conn:
        for each in (books, globex, theirs):
            await put_adapter(conn, each.project_id, "acme-pirate", digest="a" * 64, rank=2, size_bytes=1)
    email = await make_member(server, books.project_id)
    async with server.client(server.operator_key) as operator:
        key = (await operator.post(f"/projects/{books.project_id}/api_keys", json={"name": "The Acme key"})).json()
        public = key["redacted_value"].removesuffix("***")
        assert await found(operator, "ACME") == [
            ("project", "acme"),
            ("adapter", "acme-pirate"),
            ("adapter", "acme-pirate"),
            ("api_key", "The Acme key"),
            ("user", email),
        ]
        body = {"name": "Acme-7B", "model": "demo", "num_replicas": 0}
        pool = (await operator.post("/pools", json=body)).json()
        (shown,) = (await operator.get("/search", params={"q": "acme-7"})).json()["data"]
        assert shown == {
            "kind": "pool",
            "id": pool["id"],
            "name": "Acme-7B",
            "project_id": None,
            "href": f"/admin/models/{pool['id']}",
        }
        assert await found(operator, pool["id"]) == [("pool", "Acme-7B")]
        assert (await operator.delete(f"/pools/{pool['id']}")).status_code == 200
        assert await found(operator, "acme-7") == []
        (await operator.post("/pools", json=body | {"name": "globex-7b"})).raise_for_status()
        assert await found(operator, public) == [("api_key", "The Acme key")]
        hrefs = [each["href"] for each in (await operator.get("/search", params={"q": "acme"})).json()["data"][3:]]
        user = next(each for each in (await operator.get("/users")).json()["data"] if each["email"] == email)
        keys = f"/admin/tenants/{books.project_id}/keys?key={key['id']}"
        assert hrefs == [keys, f"/admin/system/users?user={user['id']}"]
        assert await found(operator, books.project_id) == [("project", "acme")]
        assert await found(operator, "req_acme") == [("request", "req_acme")]
        assert await found(operator, "req_theirs") == await found(operator, "%") == await found(operator, "_") == []
        for wrong in ("", "x" * 200):
            reply = await operator.get("/search", params={"q": wrong})
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, "q")
    async with server.person(email) as ann:
        mine = [("project", "acme"), ("adapter", "acme-pirate"), ("api_key", "The Acme key")]
        assert await found(ann, "acme") == mine
        assert await found(ann, "req_acme") == [("request", "req_acme")]
        assert await found(ann, "globex") == await found(ann, "globex-7b") == await found(ann, "req_globex") == []
