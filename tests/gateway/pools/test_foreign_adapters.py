"""A tenant's adapter answers under a pool of another maker's servers, which load it from the store's folder."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.backends.engine.model import EngineModel
from tests.gateway.backends.foreign.fake_vllm import BASE, FakeVllm, fake_vllm, tokens_of
from tests.gateway.live import Tenant
from tests.gateway.pools.test_foreign_pools import Site, site, tenant  # noqa: F401 - fixtures
from tests.patience import PATIENCE_S

FOLDER = "/srv/adapters"


def pool_of(vllm: FakeVllm, model: Path, **settings: Any) -> dict[str, Any]:
    """Return the body of a request to create a pool of a server."""
    fields: dict[str, Any] = {"adapter_folder": FOLDER, "allow_private": True, "health_seconds": 0.1}
    body = {"name": "theirs", "engine": "vllm", "urls": [vllm.server.url], "model": str(model)}
    return body | {"settings": fields | settings}


async def ask_until_answered(site: Site, model: str) -> httpx.Response:  # noqa: F811 - a fixture's name
    async with asyncio.timeout(PATIENCE_S):
        while (reply := await site.ask(model=model)).status_code in (404, 503):  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.05)
    return reply


async def test_an_adapter_answers_is_billed_and_unknown_to_the_server_by_name(
    site: Site,  # noqa: F811
    tenant: Tenant,  # noqa: F811
    tmp_path: Path,
) -> None:
    tokenizer = EngineModel.load(tmp_path / "model").tokenizer
    async with fake_vllm(FOLDER) as vllm:
        made = await site.operator.post("/pools", json=pool_of(vllm, tmp_path / "model"))
        assert made.status_code == 200, made.text
        reply = await ask_until_answered(site, "theirs:pirate")
        assert reply.status_code == 200, reply.text
        text = reply.json()["choices"][0]["message"]["content"]
        assert text == tokenizer.decode(tokens_of(tenant.digest))
        of_base = (await site.ask(model="theirs")).json()["choices"][0]["message"]["content"]
        assert of_base == tokenizer.decode(tokens_of(BASE))
        row = await site.ledger(reply.headers["x-request-id"])
        assert (row["completion_tokens"], row["model"]) == (3, "theirs:pirate")
        assert vllm.loaded == {tenant.digest: f"{FOLDER}/{tenant.digest}"}
        assert "pirate" not in str(vllm.server.received)
        models = [each["id"] for each in (await site.tenant.get("/v1/models")).json()["data"]]
        assert {"theirs", "theirs:pirate"} <= set(models)


async def test_a_pool_without_a_folder_has_the_base_alone(site: Site, tmp_path: Path) -> None:  # noqa: F811
    async with fake_vllm(FOLDER) as vllm:
        body = pool_of(vllm, tmp_path / "model")
        del body["settings"]["adapter_folder"]
        assert (await site.operator.post("/pools", json=body)).status_code == 200
        assert (await answered_base(site)).status_code == 200
        assert (await site.ask(model="theirs:pirate")).status_code == 404
        models = [each["id"] for each in (await site.tenant.get("/v1/models")).json()["data"]]
        assert "theirs:pirate" not in models


async def answered_base(site: Site) -> httpx.Response:  # noqa: F811
    return await ask_until_answered(site, "theirs")


async def test_a_server_with_a_silent_base_is_shown_to_the_operator(site: Site, tmp_path: Path) -> None:  # noqa: F811
    async with fake_vllm(FOLDER) as vllm:
        vllm.has_silent_base = True
        pool = (await site.operator.post("/pools", json=pool_of(vllm, tmp_path / "model"))).json()
        assert (await answered_base(site)).status_code == 200
        refused = await site.ask(model="theirs:pirate")
        assert refused.status_code == 503
        assert "base" not in refused.json()["error"]["message"].replace("base model", "")
        shown = await site.shown(pool["id"], lambda pool: "adapters are not served" in pool["replicas"][0]["why"])
        assert shown["state"] == "ready", "the base answers"


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"engine": "openai", "settings": {"adapter_folder": "/a"}, "model": "demo"}, "adapter_folder"),
        ({"engine": "llamacpp", "settings": {"adapter_folder": "/a"}, "model": "demo"}, "adapter_folder"),
        ({"engine": "vllm", "settings": {"preloaded_adapters": True}, "model": "demo"}, "preloaded_adapters"),
        ({"engine": "vllm", "settings": {"adapter_folder": "/a"}}, "adapter_folder"),
        ({"engine": "vllm", "settings": {"adapter_folder": "a"}, "model": "demo"}, "adapter_folder"),
        ({"engine": "vllm", "settings": {"max_adapters": 0}, "model": "demo"}, "max_adapters"),
    ],
    ids=str,
)
async def test_settings_by_which_no_adapter_could_answer_are_refused(
    site: Site,  # noqa: F811
    fields: dict[str, Any],
    name: str,
) -> None:
    body = {"name": "theirs", "urls": ["http://198.51.100.7"]} | fields
    body["settings"]["allow_private"] = True
    refused = await site.operator.post("/pools", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, f"settings.{name}"), refused.text
