"""Each way to name a model leads to its version; a forbidden model answers like one that does not exist, to the
byte."""

from __future__ import annotations

import httpx
import pytest

from tests.gateway.routing.conftest import City, Tenant, digest_of_version

PROMPT = "abcdefgh"
_RETIRE = """
    UPDATE adapter_versions v SET state = 'retired' FROM adapters a
    WHERE a.id = v.adapter_id AND a.project_id = $1 AND v.version = $2
"""
# Claimed, so that no gateway probes it.
_INSPECTED = """
    INSERT INTO adapter_versions (adapter_id, version, digest, rank, size_bytes, state, source, claimed_at)
    SELECT id, 4, $2, 8, 1, 'inspected', 'upload', now() + interval '1 hour'
    FROM adapters WHERE project_id = $1 AND name = 'pirate'
"""


async def ask(client: httpx.AsyncClient, model: str) -> httpx.Response:
    return await client.post("/v1/completions", json={"model": model, "prompt": PROMPT, "max_tokens": 3})


async def served(client: httpx.AsyncClient, model: str) -> str:
    """Return the adapter that a successful reply's header names; "" for the base."""
    reply = await ask(client, model)
    assert reply.status_code == 200, reply.text
    assert reply.json()["model"] == model
    return reply.headers.get("x-lorikeet-adapter", "")


@pytest.fixture
async def acme(city: City, operator: httpx.AsyncClient, tenants: list[Tenant]) -> Tenant:
    """Return a tenant with the alias support-bot, which points at version 1 of pirate.

    pirate has the versions 1, 2 (retired), 3 (current) and 4 (not ready yet).
    """
    acme = tenants[0]
    await acme.put("pirate", 1, 2, 3)
    await city.fetch(_RETIRE, acme.project_id, 2)
    await city.fetch(_INSPECTED, acme.project_id, digest_of_version(4))
    alias = {"name": "support-bot", "adapter": "pirate", "version": 1}
    assert (await operator.post(f"{acme.path}/aliases", json=alias)).status_code == 200
    return acme


async def test_each_name_leads_to_its_version(acme: Tenant) -> None:
    client = await acme.client()
    assert await served(client, "tiny") == ""
    assert await served(client, "tiny:pirate") == "pirate@3"
    assert await served(client, "tiny:pirate@3") == "pirate@3"
    assert await served(client, "tiny:pirate@1") == "pirate@1"
    assert await served(client, "support-bot") == "pirate@1"


async def test_streams_and_embeddings_say_where_they_come_from(acme: Tenant) -> None:
    client = await acme.client()
    body = {"model": "support-bot", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 2}
    for stream in (False, True):
        reply = await client.post("/v1/chat/completions", json=body | {"stream": stream})
        assert reply.headers["x-lorikeet-adapter"] == "pirate@1"
    reply = await client.post("/v1/embeddings", json={"model": "tiny:pirate", "input": "a"})
    assert reply.headers["x-lorikeet-adapter"] == "pirate@3"


async def test_engines_get_the_content_key_and_the_ledger_the_adapter(city: City, acme: Tenant) -> None:
    reply = await ask(await acme.client(), "support-bot")
    request = city.engine.request(reply.headers["x-request-id"])
    assert request.adapter.startswith(f"{digest_of_version(1)}.") and len(request.adapter) == 81
    assert request.tenant == acme.project_id


async def test_what_may_not_be_called_answers_as_what_does_not_exist(
    city: City, operator: httpx.AsyncClient, acme: Tenant, tenants: list[Tenant]
) -> None:
    client, stranger = await acme.client(), await tenants[1].client()
    missing = [(client, model) for model in ("tiny:pirate@2", "tiny:pirate@4", "tiny:pirate@9", "tiny:poet", "bot")]
    missing += [(stranger, model) for model in ("tiny:pirate", "tiny:pirate@1", "tiny:pirate@3", "support-bot")]
    narrow = await acme.client(models=["tiny"])
    missing += [(narrow, model) for model in ("tiny:pirate", "tiny:pirate@1", "support-bot")]
    for caller, model in missing:
        nobodys = ("y" * len(model)) if ":" not in model else model.replace("pirate", "nobody").replace("poet", "nope")
        for path in ("/v1/completions", f"/v1/models/{model}"):
            if path == "/v1/completions":
                replies = [await ask(caller, each) for each in (model, nobodys)]
            else:
                replies = [await caller.get(f"/v1/models/{each}") for each in (model, nobodys)]
            bodies = [reply.text.replace(each, "MODEL") for reply, each in zip(replies, (model, nobodys), strict=True)]
            assert [reply.status_code for reply in replies] == [404, 404], model
            assert bodies[0] == bodies[1]
            headers = [set(reply.headers) for reply in replies]
            assert headers[0] == headers[1] and "x-lorikeet-adapter" not in headers[0]


@pytest.mark.parametrize(
    ("allowed", "models"),
    [
        (None, ["tiny", "tiny:pirate", "support-bot"]),
        ([], []),
        (["tiny"], ["tiny"]),
        (["tiny:pirate"], ["tiny:pirate", "support-bot", "tiny:pirate@1"]),
        (["support-bot"], ["support-bot"]),
        (["tiny:pirate@1", "tiny:pirate@2", "tiny:poet@1"], ["tiny:pirate@1"]),
    ],
    ids=str,
)
async def test_a_key_sees_and_calls_what_its_list_names(
    acme: Tenant, allowed: list[str] | None, models: list[str]
) -> None:
    """A list names a model by its exact string, or by the adapter whose version it is."""
    client = await acme.client(models=allowed)
    listed = [model["id"] for model in (await client.get("/v1/models")).json()["data"]]
    assert listed == [model for model in models if "@" not in model or model in (allowed or ())]
    for model in ("tiny", "tiny:pirate", "tiny:pirate@1", "support-bot"):
        may_call = model in models or allowed is None
        assert (await ask(client, model)).status_code == (200 if may_call else 404), model
        assert (await client.get(f"/v1/models/{model}")).status_code == (200 if may_call else 404), model


async def test_a_listed_model_says_what_it_stands_on(acme: Tenant) -> None:
    client = await acme.client(models=["tiny", "tiny:pirate", "tiny:pirate@1"])
    listed = {model["id"]: model for model in (await client.get("/v1/models")).json()["data"]}
    assert {name: (model["root"], model["parent"]) for name, model in listed.items()} == {
        "tiny": ("tiny", None),
        "tiny:pirate": ("tiny", "tiny"),
        "tiny:pirate@1": ("tiny", "tiny"),
        "support-bot": ("tiny", "tiny:pirate@1"),
    }
    assert {model["owned_by"] for model in listed.values()} == {"lorikeet", acme.project_id}
    for name, model in listed.items():
        assert (await client.get(f"/v1/models/{name}")).json() == model


async def test_a_removed_alias_is_gone_and_comes_back_as_another(operator: httpx.AsyncClient, acme: Tenant) -> None:
    client = await acme.client()
    assert await served(client, "support-bot") == "pirate@1"
    await operator.delete(f"{acme.path}/aliases/support-bot")
    while (await ask(client, "support-bot")).status_code == 200:
        pass
    alias = {"name": "support-bot", "adapter": "pirate", "version": 3}
    assert (await operator.post(f"{acme.path}/aliases", json=alias)).status_code == 200
    assert await served(client, "support-bot") == "pirate@3"
