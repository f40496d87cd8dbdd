"""Projects' keys for servers of other makers over the admin API: set for models that the operator opened for the
project, and deleted with the pool or the project."""

from __future__ import annotations

from typing import Any

import httpx

from gateway.db.organization.projects import purge_project
from tests.gateway.admin_server import AdminServer

KEY = "sk-0123456789abcdef-AAAA"


async def made_pool(operator: httpx.AsyncClient, name: str, own_keys: str, **fields: Any) -> str:
    body = {"name": name, "engine": "openai", "urls": ["http://93.184.216.34:1"], "settings": {"own_keys": own_keys}}
    made = await operator.post("/pools", json=body | fields)
    assert made.status_code == 200, made.text
    return str(made.json()["id"])


async def test_a_key_is_taken_for_models_that_the_operator_opened_for_the_project(
    server: AdminServer, operator: httpx.AsyncClient
) -> None:
    acme = (await operator.post("/projects", json={"name": "acme"})).json()["id"]
    other = (await operator.post("/projects", json={"name": "other"})).json()["id"]
    organization = (await operator.get("")).json()["id"]
    await made_pool(operator, "opened", "allowed")
    await made_pool(operator, "closed", "none")
    listed = {"access": "listed", "grants": [{"organization_id": organization, "project_id": other}]}
    await made_pool(operator, "hidden", "required", **listed)
    path = f"/projects/{acme}/provider_keys"
    told = set()
    for model in ("closed", "hidden", "nobody", "tiny"):
        refused = await operator.post(path, json={"model": model, "key": KEY})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model"), model
        told.add(refused.json()["error"]["message"])
    assert len(told) == 1, "whether there is such a model is not told"
    for wrong in ("", "with space", "a" * 1025, "nul\x00"):
        refused = await operator.post(path, json={"model": "opened", "key": wrong})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "key")
    kept = (await operator.post(path, json={"model": "opened", "key": KEY})).json()
    assert (kept["model"], kept["hint"]) == ("opened", "AAAA")
    assert (await operator.post(path, json={"model": "opened", "key": "short"})).json()["hint"] == ""
    assert [each["id"] for each in (await operator.get(path)).json()["data"]] == [kept["id"]]
    assert (await operator.get(f"/projects/{other}/provider_keys")).json()["data"] == []
    assert (await operator.delete(f"/projects/{other}/provider_keys/{kept['id']}")).status_code == 404


async def test_keys_go_with_their_pool_and_with_their_project(server: AdminServer, operator: httpx.AsyncClient) -> None:
    acme = (await operator.post("/projects", json={"name": "acme"})).json()["id"]
    path = f"/projects/{acme}/provider_keys"
    first, second = await made_pool(operator, "first", "allowed"), await made_pool(operator, "second", "allowed")
    for model in ("first", "second"):
        assert (await operator.post(path, json={"model": model, "key": KEY})).status_code == 200
    await operator.post(f"/pools/{first}/drain")
    async with server.services.database.transaction() as conn:
        await conn.execute("UPDATE replicas SET state = 'stopped' WHERE pool_id = $1", first)
    assert (await operator.delete(f"/pools/{first}")).status_code == 200
    assert [each["model"] for each in (await operator.get(path)).json()["data"]] == ["second"]
    closed = await operator.post(f"/pools/{second}", json={"settings": {}})
    assert closed.status_code == 200, closed.text
    assert (await operator.post(path, json={"model": "second", "key": KEY})).status_code == 400
    assert [each["model"] for each in (await operator.get(path)).json()["data"]] == ["second"], "it can be removed yet"
    async with server.services.database.transaction() as conn:
        await purge_project(conn, acme)
        assert await conn.fetchval("SELECT count(*) FROM provider_keys") == 0
