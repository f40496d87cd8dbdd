"""A server of another maker behind a tenant's key, as an operator puts it there: limits, prices and the ledger hold."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from gateway.backends.foreign.connection import ServerGone
from gateway.backends.foreign.server import Server
from gateway.pools.foreign import judged_by
from gateway.support.outbound import NotPublic
from tests.gateway.backends.foreign.fake import (
    END,
    HEAD,
    FakeServer,
    delta,
    event,
    fake_server,
    refusing,
    saying,
    sending,
    usage,
)
from tests.gateway.live import Tenant, make_operator_key, make_tenant
from tests.gateway.model_folder import make_model_folder
from tests.installation.live_gateway import running_gateways
from tests.patience import PATIENCE_S

ASKED = {"model": "theirs", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 16}
PRICE = {"model": "theirs", "input_nanos_per_million": 2_000_000_000, "output_nanos_per_million": 4_000_000_000}


class Site:
    """A gateway with a server of another maker, an operator and a tenant."""

    def __init__(self, url: str, operator: httpx.AsyncClient, tenant: httpx.AsyncClient, dsn: str) -> None:
        self.url = url
        self.operator = operator
        self.tenant = tenant
        self.dsn = dsn

    async def create(self, server: FakeServer, *others: str, **fields: Any) -> dict[str, Any]:
        """Create a pool of the server, and wait until the tenant gets an answer."""
        body = {
            "name": "theirs",
            "engine": "openai",
            "urls": [server.url, *others],
            "settings": {"allow_private": True, "health_seconds": 0.1},
        }
        reply = await self.operator.post("/pools", json=body | fields)
        assert reply.status_code == 200, reply.text
        async with asyncio.timeout(PATIENCE_S):
            while (await self.ask()).status_code != 200:  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.05)
        made: dict[str, Any] = reply.json()
        return made

    async def shown(self, pool_id: str, is_due: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the admin API shows a pool in a form that `is_due` accepts, and return it."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                pool: dict[str, Any] = (await self.operator.get(f"/pools/{pool_id}")).json()
                if is_due(pool):
                    return pool
                await asyncio.sleep(0.05)

    async def ask(self, **fields: Any) -> httpx.Response:
        return await self.tenant.post("/v1/chat/completions", json=ASKED | fields)

    async def ledger(self, request_id: str) -> asyncpg.Record:
        """Wait until the ledger has a row for a request, and return it."""
        conn = await asyncpg.connect(self.dsn)
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    row = await conn.fetchrow(
                        "SELECT * FROM ledger WHERE request_id = $1 AND finish_reason <> 'superseded'", request_id
                    )
                    if row is not None:
                        return row
                    await asyncio.sleep(0.05)
        finally:
            await conn.close()


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with fake_server() as server:
        yield server


@pytest.fixture
async def tenant(dsn: str) -> Tenant:
    return await make_tenant(dsn, "acme", "pirate", "1")


@pytest.fixture
async def site(dsn: str, tenant: Tenant, tmp_path: Path) -> AsyncIterator[Site]:
    operator_key = await make_operator_key(dsn)
    context = running_gateways(dsn, make_model_folder(tmp_path / "model"), data_dir=tmp_path, reply_details=True)
    installed = await asyncio.to_thread(context.__enter__)
    url = installed.gateway.url
    try:
        async with (
            httpx.AsyncClient(
                base_url=f"{url}/v1/organization",
                headers={"authorization": f"Bearer {operator_key}"},
                timeout=PATIENCE_S,
            ) as operator,
            httpx.AsyncClient(
                base_url=url, headers={"authorization": f"Bearer {tenant.key}"}, timeout=PATIENCE_S
            ) as asker,
        ):
            yield Site(url, operator, asker, dsn)
    finally:
        await asyncio.to_thread(context.__exit__, None, None, None)


async def test_a_server_answers_behind_a_tenants_key_and_is_billed_by_its_counts(
    site: Site, server: FakeServer
) -> None:
    prices = {"currency": "usd", "entries": [PRICE]}
    assert (await site.operator.post("/prices", json=prices)).status_code == 200
    made = await site.create(server)
    pool = (await site.operator.get(f"/pools/{made['id']}")).json()
    assert (pool["engine"], pool["urls"], pool["state"]) == ("openai", [server.url], "ready")
    assert (pool["num_ready"], pool["num_wanted"]) == (1, 1)
    whole = await site.ask()
    body = whole.json()
    assert body["choices"][0]["message"]["content"] == "Hello world"
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (9, 2)
    assert "theirs" not in whole.headers.get("x-request-id", "")
    row = await site.ledger(whole.headers["x-request-id"])
    assert (row["prompt_tokens"], row["completion_tokens"], row["model"]) == (9, 2, "theirs")
    told = (whole.headers["x-lorikeet-pool"], whole.headers["x-lorikeet-cost-nanos"])
    assert told == ("theirs", str(row["cost_nanos"])) == ("theirs", "26000")
    assert server.received[-1].headers["x-request-id"] == whole.headers["x-request-id"]
    text = (await site.ask(stream=True, stream_options={"include_usage": True})).text
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert "".join(each["choices"][0]["delta"].get("content") or "" for each in chunks if each["choices"]) == (
        "Hello world"
    )
    assert chunks[-1]["usage"]["completion_tokens"] == 2
    assert "chatcmpl-theirs" not in text


async def test_a_limit_reserves_the_upper_bound_and_is_given_back(
    site: Site, server: FakeServer, tenant: Tenant
) -> None:
    await site.create(server)
    path = f"/projects/{tenant.project_id}/limits"
    made = await site.operator.post(path, json={"unit": "tokens", "window": "day", "max": 456, "hard": True})
    assert made.status_code == 200, made.text
    long = {"messages": [{"role": "user", "content": "a" * 400}]}
    await _ask_until_refused(site, long)
    assert (await site.ask()).status_code == 200, (
        "42 bytes, 256 of the template and 16 tokens fit; 11 tokens are billed"
    )
    assert (await site.ask()).status_code == 200


async def _ask_until_refused(site: Site, fields: dict[str, Any]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (await site.ask(**fields)).status_code != 429:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": True}, "prompt_logprobs"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"top_k": 3}, "top_k"),
        ({"return_token_ids": True}, "return_token_ids"),
        ({"structured_outputs": {"regex": "a+"}}, "structured_outputs.regex"),
        ({"n": 100}, "n"),
    ],
    ids=str,
)
async def test_what_the_server_cannot_do_is_refused_by_its_name(
    site: Site, server: FakeServer, fields: dict[str, Any], param: str
) -> None:
    await site.create(server)
    server.received.clear()
    refused = await site.ask(**fields)
    assert refused.status_code == 400, refused.text
    error = refused.json()["error"]
    assert (error["param"] or "").split(".")[0] in (param.split(".")[0], "logprobs", "top_logprobs")
    assert not server.received, "nothing is left out in silence"


@pytest.mark.parametrize(
    ("code", "param"), [("context_length_exceeded", "messages"), ("refused_by_server", None)], ids=str
)
async def test_a_refusal_names_the_clients_field_if_one_is_known(
    site: Site, server: FakeServer, code: str, param: str | None
) -> None:
    await site.create(server)
    server.answer = refusing(400, json.dumps({"error": {"message": "secret of theirs", "code": code}}))
    refused = await site.ask()
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, code)
    assert refused.json()["error"]["param"] == param
    assert (await site.ledger(refused.headers["x-request-id"]))["completion_tokens"] == 0


async def test_a_second_server_answers_where_the_first_one_fails(site: Site, server: FakeServer) -> None:
    async with fake_server() as other:
        await site.create(server, other.url)
        server.answer = refusing(500, '{"error": {"message": "secret of theirs"}}')
        replies = [await site.ask() for _ in range(6)]
        assert [each.status_code for each in replies] == [200] * 6
        rows = [await site.ledger(each.headers["x-request-id"]) for each in replies]
        assert [row["completion_tokens"] for row in rows] == [2] * 6
        other.answer = server.answer
        async with asyncio.timeout(PATIENCE_S):
            while (failed := await site.ask()).status_code == 200:
                pass
        assert failed.status_code in (502, 503)
        assert "secret" not in failed.text


async def test_a_pool_gets_other_servers_within_moments(site: Site, server: FakeServer) -> None:
    pool = await site.create(server)
    async with fake_server() as other:
        other.answer = saying("From", " another")
        changed = await site.operator.post(f"/pools/{pool['id']}", json={"urls": [other.url]})
        assert changed.status_code == 200, changed.text
        assert (changed.json()["urls"], changed.json()["revision"]) == ([other.url], 2)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                reply = await site.ask()
                if reply.status_code == 200 and "From another" in reply.text:
                    break
                assert reply.status_code in (200, 503), "until the new server was asked, the pool may have none"
                assert reply.status_code == 200 or "retry-after" in reply.headers
        drained = (await site.operator.post(f"/pools/{pool['id']}/drain")).json()
        assert drained["state"] in ("draining", "stopped")
        assert (await site.operator.delete(f"/pools/{pool['id']}")).status_code == 200


async def test_a_server_that_is_not_there_is_shown_as_the_gateway_finds_it(
    site: Site, server: FakeServer, tenant: Tenant
) -> None:
    await server.stop()
    body = {"name": "theirs", "engine": "openai", "urls": [server.url]}
    body |= {"settings": {"allow_private": True, "health_seconds": 0.1}}
    pool = (await site.operator.post("/pools", json=body)).json()
    assert (pool["state"], pool["num_ready"], pool["num_wanted"]) == ("scaling", 0, 1)
    shown = await site.shown(pool["id"], lambda pool: "does not answer" in pool["why"])
    assert (shown["state"], shown["num_ready"], shown["num_wanted"]) == ("scaling", 0, 1)
    (replica,) = shown["replicas"]
    assert replica["state"] == "loading"
    assert "does not answer: no connection" in replica["why"]
    listed = (await site.operator.get("/replicas", params={"pool_id": pool["id"]})).json()["data"]
    assert [each["state"] for each in listed] == ["loading"]
    path = f"/projects/{tenant.project_id}/models"
    models = {each["name"]: each for each in (await site.operator.get(path)).json()["data"]}
    assert models["theirs"]["num_ready"] == 0
    refused = await site.ask()
    assert refused.status_code == 503
    assert "the server is not ready" in refused.json()["error"]["message"], "tenants get no reasons"
    await server.start()
    await site.shown(pool["id"], lambda pool: (pool["state"], pool["num_ready"], pool["why"]) == ("ready", 1, ""))


async def test_a_drained_pool_serves_again_from_addresses_that_are_named(site: Site, server: FakeServer) -> None:
    pool = await site.create(server)
    path = f"/pools/{pool['id']}"
    assert (await site.operator.post(f"{path}/drain")).status_code == 200
    drained = await site.shown(pool["id"], lambda pool: pool["state"] == "stopped")
    assert "'urls'" in drained["why"]
    assert (await site.operator.post(path, json={"num_replicas": 1})).json()["error"]["param"] == "num_replicas"
    assert (await site.operator.post(path, json={"urls": [server.url]})).status_code == 200
    await site.shown(pool["id"], lambda pool: pool["state"] == "ready")
    assert (await site.ask()).status_code == 200


async def test_engines_of_our_own_get_no_key(site: Site) -> None:
    own = next(each for each in (await site.operator.get("/pools")).json()["data"] if each["engine"] == "lorikeet")
    refused = await site.operator.post(f"/pools/{own['id']}/key", json={"key": "sk-0123456789abcdefWXYZ"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (409, "pool_id")
    assert (await site.operator.get(f"/pools/{own['id']}")).json()["key_hint"] is None


async def test_a_stream_shows_what_it_would_be_billed_by_now(site: Site, server: FakeServer) -> None:
    await site.create(server)
    server.answer = saying("Hello", " world", "!", counts=(9, 3))
    text = (await site.ask(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True})).text
    usages = [json.loads(line[6:])["usage"] for line in text.splitlines() if line.startswith("data: {")]
    assert usages[-1]["prompt_tokens"] == 9
    assert usages[0]["prompt_tokens"] == 15, "57 bytes by four, not the bound of over 300"
    assert {each["prompt_tokens"] for each in usages[1:-1]} <= {9, 15}, "the server's own, once it has come"
    counts = [each["completion_tokens"] for each in usages[:-1]]
    assert counts == sorted(counts)
    assert counts[-1] == 3


async def test_reasoning_that_a_server_tells_apart_is_shown_as_such_by_each_api(site: Site, server: FakeServer) -> None:
    await site.create(server)
    thought = [delta("", reasoning_content="Why"), delta("", reasoning="?"), delta("Four"), delta(".")]
    end = [delta("", finish="stop"), usage(9, 6), "[DONE]"]
    server.answer = sending(HEAD, *map(event, [*thought, *end]), END)
    message = (await site.ask()).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Why?", "Four.")
    lines = [line[6:] for line in (await site.ask(stream=True)).text.splitlines() if line.startswith("data: {")]
    deltas = [json.loads(line)["choices"][0]["delta"] for line in lines]
    assert "".join(each.get("reasoning_content", "") for each in deltas) == "Why?"
    assert "".join(each.get("content") or "" for each in deltas) == "Four."
    asked = {"model": ASKED["model"], "input": "2 + 2?"}
    output = (await site.tenant.post("/v1/responses", json=asked)).json()["output"]
    assert [(item["type"], item["content"][0]["text"]) for item in output] == [
        ("reasoning", "Why?"),
        ("message", "Four."),
    ]
    body = {"model": ASKED["model"], "max_tokens": 9, "messages": [{"role": "user", "content": "2 + 2?"}]}
    for thinking, types in (({"type": "adaptive"}, ["thinking", "text"]), ({"type": "disabled"}, ["text"])):
        reply = await site.tenant.post("/v1/messages", json=body | {"thinking": thinking})
        assert [block["type"] for block in reply.json()["content"]] == types, reply.text


async def test_a_key_is_kept_encrypted_sent_to_the_server_alone_and_shown_to_nobody(
    site: Site, server: FakeServer
) -> None:
    pool = await site.create(server)
    key = "sk-0123456789abcdefWXYZ"
    kept = await site.operator.post(f"/pools/{pool['id']}/key", json={"key": key})
    assert (kept.status_code, kept.json()["hint"]) == (200, "WXYZ")
    async with asyncio.timeout(PATIENCE_S):
        while server.received[-1].headers.get("authorization") != f"Bearer {key}":
            assert (await site.ask()).status_code == 200
    shown = await site.operator.get(f"/pools/{pool['id']}")
    logs = await site.operator.get("/audit_logs", params={"limit": 100})
    assert shown.json()["key_hint"] == "WXYZ"
    assert "pool.key_set" in logs.text
    for reply in (kept, shown, logs):
        assert key not in reply.text
    conn = await asyncpg.connect(site.dsn)
    try:
        assert key.encode() not in await conn.fetchval("SELECT sealed FROM backend_keys")
    finally:
        await conn.close()
    assert (await site.operator.delete(f"/pools/{pool['id']}/key")).status_code == 200
    async with asyncio.timeout(PATIENCE_S):
        while "authorization" in server.received[-1].headers:
            assert (await site.ask()).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"urls": []}, "urls"),
        ({"urls": ["ftp://x"]}, "urls[0]"),
        ({"urls": ["http://user:pw@example.com"]}, "urls[0]"),
        ({"urls": ["http://127.0.0.1:8000"], "settings": {}}, "urls[0]"),
        ({"urls": ["http://example.com", "http://example.com/"]}, "urls[1]"),
        *(
            ({"urls": [f"http://{host}/"], "settings": {"allow_private": True}}, "urls[0]")
            for host in ("169.254.169.254", "2852039166", "[fd00:ec2::254]", "metadata.google.internal")
        ),
        ({"num_replicas": 2}, "num_replicas"),
        ({"settings": {"max_num_seqs": 4}}, "settings.max_num_seqs"),
        ({"settings": {"idle_seconds": -1}}, "settings.idle_seconds"),
        ({"engine": "lorikeet", "model": "demo", "settings": {}}, "urls"),
        ({"engine": "lorikeet", "settings": {}}, "urls"),
        ({"engine": "nobody"}, "engine"),
        ({"model": "no such thing"}, "model"),
    ],
    ids=str,
)
async def test_a_pool_that_could_not_serve_is_refused_by_field(site: Site, fields: dict[str, Any], param: str) -> None:
    body = {"name": "theirs", "engine": "openai", "urls": ["http://example.com"], "settings": {}}
    refused = await site.operator.post("/pools", json=body | fields)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), refused.text


async def test_a_server_at_an_address_that_is_refused_is_gone_and_no_fault_of_ours() -> None:
    async def address_of(url: httpx.URL) -> str:
        raise NotPublic("the address is not a public one")

    server = Server("http://example.com", judged_by(address_of), ssl.create_default_context, connect_s=5.0)
    with pytest.raises(ServerGone):
        await server.ask_whole("GET", "/v1/models", within_s=5.0)
