"""A tenant's own key for a server of another maker is sent to that server, charged to nobody, and never shown again."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import httpx
import pytest

from tests.gateway.backends.foreign.fake import FakeServer
from tests.gateway.live import BASE, Tenant
from tests.gateway.pools.test_foreign_pools import PRICE, Site, server, site, tenant  # noqa: F401 - fixtures
from tests.patience import PATIENCE_S

FIRST, SECOND = "sk-0123456789abcdef-AAAA", "sk-0123456789abcdef-BBBB"
SETTINGS = {"allow_private": True, "health_seconds": 0.1, "own_keys": "required", "served_model": "theirs"}


async def asked(site: Site, status: int) -> httpx.Response:  # noqa: F811 - a fixture's name
    """Send requests until a reply has this status, since changes of keys take up to a second; return that reply."""
    async with asyncio.timeout(PATIENCE_S):
        while (reply := await site.ask()).status_code != status:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.02)
        return reply


def sent_key(server: FakeServer) -> str:  # noqa: F811
    return server.received[-1].headers["authorization"].removeprefix("Bearer ")


async def test_a_tenants_own_key_is_used_for_it_alone_uncharged_and_never_shown(
    site: Site,  # noqa: F811
    server: FakeServer,  # noqa: F811
    tenant: Tenant,  # noqa: F811
    capfd: pytest.CaptureFixture[str],
) -> None:
    server.keys = {FIRST, SECOND}
    project = f"/projects/{tenant.project_id}"
    keys, body = f"{project}/provider_keys", {"name": "theirs", "engine": "openai", "urls": [server.url]}
    prices = {"currency": "usd", "entries": [PRICE]}
    assert (await site.operator.post("/prices", json=prices)).status_code == 200
    pool = (await site.operator.post("/pools", json=body | {"settings": SETTINGS})).json()
    await site.shown(pool["id"], lambda shown: shown["state"] == "ready")
    missing = await asked(site, 403)
    assert missing.json()["error"]["code"] == "provider_key_missing"
    assert not server.received, "nothing is sent without the key"

    set_first = await site.operator.post(keys, json={"model": "theirs", "key": FIRST})
    assert (set_first.status_code, set_first.json()["hint"]) == (200, "AAAA")
    limit = {"unit": "cost_nanos", "window": "day", "max": 1, "hard": True}
    assert (await site.operator.post(f"{project}/limits", json=limit)).status_code == 200
    whole = await asked(site, 200)
    assert sent_key(server) == FIRST
    assert (whole.headers["x-lorikeet-pool"], whole.headers["x-lorikeet-cost-nanos"]) == ("theirs", "0")
    row = await site.ledger(whole.headers["x-request-id"])
    assert (row["own_key"], row["price_version"], row["cost_nanos"], row["list_cost_nanos"]) == (True, None, 0, 0)
    assert (row["prompt_tokens"], row["completion_tokens"]) == (9, 2), "still counted"
    details = await site.operator.get(f"/requests/{whole.headers['x-request-id']}")
    assert [each["own_key"] for each in details.json()["attempts"]] == [True]
    models = {each["name"]: each["own_keys"] for each in (await site.operator.get(f"{project}/models")).json()["data"]}
    assert models["theirs"] == "required"

    changed = await site.operator.post(keys, json={"model": "theirs", "key": SECOND})
    assert (changed.json()["id"], changed.json()["hint"]) == (set_first.json()["id"], "BBBB")
    async with asyncio.timeout(PATIENCE_S):
        while sent_key(server) != SECOND:
            await site.ask()
    server.keys = {FIRST}
    refused = await asked(site, 403)
    assert refused.json()["error"]["code"] == "provider_key_refused"
    assert "'BBBB'" in refused.json()["error"]["message"]

    shown = await site.operator.get(keys)
    audit = await site.operator.get("/audit_logs", params={"limit": 100})
    assert [each["type"] for each in audit.json()["data"]].count("provider_key.set") == 2
    out = capfd.readouterr()
    for text in (missing.text, refused.text, set_first.text, shown.text, audit.text, details.text, out.out, out.err):
        assert FIRST not in text and SECOND not in text
    assert not await _found_in_database(site.dsn, FIRST, SECOND)

    gone = await site.operator.delete(f"{keys}/{set_first.json()['id']}")
    assert (gone.status_code, gone.json()["deleted"]) == (200, True)
    async with asyncio.timeout(PATIENCE_S):
        while (await site.ask()).json()["error"]["code"] != "provider_key_missing":  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert (await site.operator.get(keys)).json()["data"] == []
    spare = {"root": {"fallback": {"nodes": [{"target": "theirs"}, {"target": BASE}]}}}
    made = await site.operator.post(f"{project}/routes", json={"name": "spare", "document": spare})
    assert made.status_code == 200, made.text
    answered = await site.ask(model="spare")
    assert (answered.status_code, answered.headers["x-lorikeet-target"]) == (200, BASE), "a route goes on without a key"


async def _found_in_database(dsn: str, *keys: str) -> list[str]:
    """Return the names of tables in which one of the keys is found in clear."""
    conn = await asyncpg.connect(dsn)
    found: list[Any] = []
    try:
        for table in ("provider_keys", "audit_log", "ledger", "pool_revisions"):
            for key in keys:
                if await conn.fetchval(f"SELECT count(*) FROM {table} t WHERE t::text LIKE '%' || $1 || '%'", key):
                    found.append(table)
                hexed = key.encode().hex()
                if await conn.fetchval(f"SELECT count(*) FROM {table} t WHERE t::text LIKE '%' || $1 || '%'", hexed):
                    found.append(table)
    finally:
        await conn.close()
    return found
