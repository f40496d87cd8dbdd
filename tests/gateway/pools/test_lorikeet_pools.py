"""Another Lorikeet behind a pool: here the same gateway, over a real socket, with a tenant's key."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.live import BASE, Tenant
from tests.gateway.pools.test_foreign_pools import Site, site, tenant  # noqa: F401 - fixtures
from tests.patience import PATIENCE_S

ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8, "seed": 3}


async def ask(site: Site, model: str, **fields: Any) -> httpx.Response:  # noqa: F811
    return await site.tenant.post("/v1/chat/completions", json=ASKED | {"model": model} | fields)


@pytest.mark.parametrize("has_tokenizer", [True, False], ids=["token ids", "text"])
async def test_it_answers_as_its_own_base_and_both_count_the_same(
    site: Site,  # noqa: F811
    tenant: Tenant,  # noqa: F811
    tmp_path: Path,
    has_tokenizer: bool,
) -> None:
    settings = {"allow_private": True, "served_model": BASE, "health_seconds": 0.1}
    body = {"name": "there", "engine": "lorikeet-gateway", "urls": [f"{site.tenant.base_url}"], "settings": settings}
    if has_tokenizer:
        body["model"] = str(tmp_path / "model")
    pool = (await site.operator.post("/pools", json=body)).json()
    assert (await site.operator.post(f"/pools/{pool['id']}/key", json={"key": tenant.key})).status_code == 200
    await site.shown(pool["id"], lambda pool: pool["state"] == "ready")
    async with asyncio.timeout(PATIENCE_S):
        while (there := await ask(site, "there")).status_code != 200:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.05)
    here = await ask(site, BASE)
    assert there.json()["choices"][0]["message"] == here.json()["choices"][0]["message"]
    assert there.json()["choices"][0]["finish_reason"] == here.json()["choices"][0]["finish_reason"]
    names = ("prompt_tokens", "completion_tokens")
    counts = [[reply.json()["usage"][name] for name in names] for reply in (there, here)]
    assert counts[0] == counts[1]
    row = await site.ledger(there.headers["x-request-id"])
    assert [*(row[name] for name in names), row["model"]] == [*counts[0], "there"]
    refused = await ask(site, "there", logit_bias={"5": 1})
    assert refused.status_code == (200 if has_tokenizer else 400)
