"""A shared adapter answers under its name: limits, fairness, cache and bill are the borrower's, and borrowers do not
see the owner."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from adapters.ref import content_key
from tests.gateway.routing.conftest import City, Tenant, digest_of_version
from tests.gateway.routing.test_names_over_http import ask, served
from tests.patience import PATIENCE_S

_ROW = """
    SELECT l.project_id, l.model, l.adapter_version, l.adapter_digest, l.adapter_class, a.project_id AS owner
    FROM ledger l JOIN adapters a ON a.id = l.adapter_id WHERE l.request_id = $1
"""


async def until(client: httpx.AsyncClient, model: str, status: int) -> httpx.Response:
    """Send requests until a reply has this status, and return it."""
    async with asyncio.timeout(PATIENCE_S):
        while (reply := await ask(client, model)).status_code != status:
            pass
    return reply


@pytest.fixture
async def shared(operator: httpx.AsyncClient, tenants: list[Tenant]) -> list[Tenant]:
    """Return the tenants (owner, borrower, stranger); the owner's adapter pirate has two versions."""
    owner, borrower, _ = tenants
    await owner.put("pirate", 1, 2)
    body = {"project_id": borrower.project_id}
    reply = await operator.post(f"{owner.path}/adapters/pirate/shares", json=body)
    assert reply.status_code == 200, reply.text
    return tenants


async def test_a_shared_adapter_is_called_by_its_name_and_shows_nothing_else_of_its_owner(shared: list[Tenant]) -> None:
    owner, borrower, stranger = shared
    client = await borrower.client()
    assert await served(client, "tiny:pirate") == "pirate@2"
    listed = (await client.get("/v1/models")).json()["data"]
    assert [(model["id"], model["owned_by"], model["parent"]) for model in listed] == [
        ("tiny", "lorikeet", None),
        ("tiny:pirate", "shared", "tiny"),
    ]
    assert owner.project_id not in str(listed)
    assert (await ask(client, "tiny:pirate@2")).status_code == 404, "numbers are the owner's"
    assert (await ask(await stranger.client(), "tiny:pirate")).status_code == 404


async def test_the_engine_and_the_ledger_know_who_asked(
    city: City, operator: httpx.AsyncClient, shared: list[Tenant]
) -> None:
    owner, borrower, _ = shared
    await operator.post(f"{owner.path}/adapters/pirate/price_class", json={"price_class": "large"})
    reply = await ask(await borrower.client(), "tiny:pirate")
    request = city.engine.request(reply.headers["x-request-id"])
    assert request.tenant == borrower.project_id, "fairness and cached prefixes"
    assert request.adapter == content_key(owner.project_id, digest_of_version(2)), "one thing on the device"
    rows: list[Any] = []
    async with asyncio.timeout(PATIENCE_S):
        while not rows:
            rows = await city.fetch(_ROW, reply.headers["x-request-id"])
            await asyncio.sleep(0.02)
    (row,) = rows
    assert (row["project_id"], row["owner"]) == (borrower.project_id, owner.project_id)
    assert (row["model"], row["adapter_version"], row["adapter_digest"]) == ("tiny:pirate", 2, None)
    assert row["adapter_class"] == "large", "the owner's class"


async def test_the_callers_limits_count(operator: httpx.AsyncClient, shared: list[Tenant]) -> None:
    owner, borrower, _ = shared
    limit = {"unit": "requests", "window": "day", "max": 1, "model": "tiny:pirate"}
    await operator.post(f"{borrower.path}/limits", json=limit)
    client = await borrower.client()
    await until(client, "tiny:pirate", 429)
    assert await served(await owner.client(), "tiny:pirate") == "pirate@2"


async def test_ones_own_adapter_of_the_name_wins_once_it_has_a_version(city: City, shared: list[Tenant]) -> None:
    borrower = shared[1]
    client = await borrower.client()
    assert await served(client, "tiny:pirate") == "pirate@2"
    await borrower.put("pirate", 7)
    async with asyncio.timeout(PATIENCE_S):
        while await served(client, "tiny:pirate") != "pirate@1":
            pass
    models = (await client.get("/v1/models")).json()["data"]
    assert [(model["id"], model["owned_by"]) for model in models][1:] == [("tiny:pirate", borrower.project_id)]


async def test_a_promoted_version_holds_for_borrowers_too(city: City, shared: list[Tenant]) -> None:
    owner, borrower, _ = shared
    clients = [await borrower.client(gateway) for gateway in range(2)]
    assert [await served(client, "tiny:pirate") for client in clients] == ["pirate@2"] * 2
    await city.cut_notifications()
    await owner.put("pirate", 3)
    async with asyncio.timeout(PATIENCE_S):
        while [await served(client, "tiny:pirate") for client in clients] != ["pirate@3"] * 2:
            pass


async def test_only_the_owner_learns_why_a_shared_adapter_cannot_be_loaded(city: City, shared: list[Tenant]) -> None:
    owner, borrower, _ = shared
    await owner.put("pirate", 999)
    key = content_key(owner.project_id, digest_of_version(999))
    city.engine.lose(key)
    owners, borrowers = await owner.client(), await borrower.client()
    assert key in (await until(owners, "tiny:pirate", 400)).text
    told = [
        await until(borrowers, "tiny:pirate", 400),
        await borrowers.post("/v1/embeddings", json={"model": "tiny:pirate", "input": "a"}),
    ]
    for reply in told:
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "model")
        assert owner.project_id not in reply.text and key[:8] not in reply.text


async def test_only_the_owner_learns_how_a_shared_adapter_makes_the_engine_fail(
    city: City, shared: list[Tenant]
) -> None:
    owner, borrower, _ = shared
    await owner.put("pirate", 998)
    key = content_key(owner.project_id, digest_of_version(998))
    city.engine.break_on(key)
    owners, borrowers = await owner.client(), await borrower.client()
    assert key in (await until(owners, "tiny:pirate", 502)).text
    told = [
        await until(borrowers, "tiny:pirate", 502),
        await borrowers.post("/v1/embeddings", json={"model": "tiny:pirate", "input": "a"}),
    ]
    for reply in told:
        assert (reply.status_code, reply.json()["error"]["code"]) == (502, "backend_failed")
        assert owner.project_id not in reply.text and key[:8] not in reply.text


@pytest.mark.parametrize("how", ["unshared", "removed", "archived"])
async def test_an_ended_share_is_answered_like_an_adapter_that_does_not_exist(
    operator: httpx.AsyncClient, shared: list[Tenant], how: str
) -> None:
    owner, borrower, _ = shared
    client = await borrower.client()
    assert await served(client, "tiny:pirate") == "pirate@2"
    if how == "unshared":
        await operator.delete(f"{owner.path}/adapters/pirate/shares/{borrower.project_id}")
    elif how == "removed":
        await operator.delete(f"{owner.path}/adapters/pirate")
    else:
        await operator.post(f"{owner.path}/archive", json={})
    ended = await until(client, "tiny:pirate", 404)
    never = await ask(client, "tiny:nobody")
    assert ended.text.replace("pirate", "nobody") == never.text
    assert [model["id"] for model in (await client.get("/v1/models")).json()["data"]] == ["tiny"]


async def test_the_owners_system_prompt_is_not_shown_to_borrowers(
    city: City, operator: httpx.AsyncClient, shared: list[Tenant]
) -> None:
    owner, borrower, _ = shared
    secret = "you are a pirate of few words"
    await operator.post(f"{owner.path}/adapters/pirate", json={"defaults": {"system_prompt": secret}})
    client, owners = await borrower.client(), await owner.client()
    own = [{"role": "user", "content": "hello there"}]
    with_system = [{"role": "system", "content": "be kind"}, *own]
    chat = {"model": "tiny:pirate", "messages": own, "max_tokens": 1}

    async def num_tokens(of: httpx.AsyncClient, model: str, messages: list[dict[str, str]]) -> int:
        reply = await of.post("/tokenize", json={"model": model, "messages": messages})
        count: int = reply.json()["count"]
        return count

    async with asyncio.timeout(PATIENCE_S):  # until the change has reached the gateway
        while await num_tokens(owners, "tiny:pirate", own) == await num_tokens(owners, "tiny", own):
            pass
    assert await num_tokens(client, "tiny:pirate", own) == await num_tokens(client, "tiny", own)
    for field, value in (("return_token_ids", True), ("prompt_logprobs", 1)):
        for stream in (False, True) if field == "return_token_ids" else (False,):
            refused = await client.post("/v1/chat/completions", json=chat | {field: value, "stream": stream})
            assert refused.status_code == 400
            assert (refused.json()["error"]["param"], refused.json()["error"]["code"]) == (
                field,
                "shared_system_prompt",
            )
        shown = await client.post("/v1/chat/completions", json=chat | {"messages": with_system, field: value})
        assert shown.status_code == 200, "nothing of the owner is in it"
        assert (await owners.post("/v1/chat/completions", json=chat | {field: value})).status_code == 200
    reply = await client.post("/v1/chat/completions", json=chat)
    assert reply.status_code == 200
    applied = city.engine.request(reply.headers["x-request-id"]).prompt_token_ids
    assert len(applied) > await num_tokens(client, "tiny:pirate", own), "it answers under the prompt all the same"
    counted = await client.post("/v1/responses/input_tokens", json={"model": "tiny:pirate", "input": own})
    assert counted.json()["input_tokens"] == len(applied), "which is billed, and counted as such"
    counted = await client.post("/v1/messages/count_tokens", json={"model": "tiny:pirate", "messages": own})
    assert counted.json()["input_tokens"] == len(applied)
