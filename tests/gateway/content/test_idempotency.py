"""One key, one execution, one reply: what a client sees of an Idempotency-Key."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest

from gateway.content.keeper import Keeper
from gateway.db.pool import Database
from tests.gateway.conftest import House
from tests.gateway.content.conftest import all_rows_as_text, another_key, ledger_rows
from tests.gateway.limits.fleet import Key
from tests.installation.waiting import until

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 12}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": "tiny", "prompt": ["one", "two"], "max_tokens": 5},
    "/v1/embeddings": {"model": "tiny", "input": ["one", "two"]},
}
OF_ITS_OWN = {"date", "x-request-id", "openai-processing-ms", "transfer-encoding", "content-length"}


async def send(
    client: httpx.AsyncClient, tenant: Key, key: str, body: dict[str, Any], path: str = "/v1/chat/completions"
) -> httpx.Response:
    return await client.post(path, json=body, headers=tenant.headers | {"idempotency-key": key})


def refusal(reply: httpx.Response) -> tuple[int, str, str]:
    error = reply.json()["error"]
    return reply.status_code, error["code"], error["param"]


@pytest.mark.parametrize("path", BODIES)
async def test_the_same_request_again_gets_the_same_bytes_and_is_billed_once(
    house: House, client: httpx.AsyncClient, tenant: Key, path: str
) -> None:
    first = await send(client, tenant, "again", BODIES[path], path)
    assert (first.status_code, first.headers.get("idempotent-replayed")) == (200, None)
    for _ in range(2):
        second = await send(client, tenant, "again", BODIES[path], path)
        assert (second.status_code, second.content) == (200, first.content)
        assert second.headers["idempotent-replayed"] == "true"
        assert second.headers["x-lorikeet-original-request-id"] == first.headers["x-request-id"]
        assert second.headers["x-request-id"] != first.headers["x-request-id"]
        assert second.headers["content-type"] == first.headers["content-type"]
    num_prompts = 1 if path.endswith("chat/completions") else 2
    assert len(await ledger_rows(house.dsn, tenant.project_id, num_prompts)) == num_prompts


async def test_a_stream_is_replayed_byte_by_byte(house: House, client: httpx.AsyncClient, tenant: Key) -> None:
    body = CHAT | {"stream": True, "stream_options": {"include_usage": True}}
    first, second = [await send(client, tenant, "stream", body) for _ in range(2)]
    assert first.content.endswith(b"data: [DONE]\n\n")
    assert second.content == first.content
    assert second.headers["content-type"] == first.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert len(await ledger_rows(house.dsn, tenant.project_id, 1)) == 1


async def test_the_official_client_replays(house: House, tenant: Key) -> None:
    async with openai.AsyncOpenAI(base_url=f"{house.url}/v1", api_key=tenant.secret, max_retries=0) as client:
        replies = [
            await client.chat.completions.create(**CHAT, extra_headers={"Idempotency-Key": "official"})
            for _ in range(2)
        ]
    assert replies[0] == replies[1]


async def test_another_request_with_the_same_key_is_refused(client: httpx.AsyncClient, tenant: Key) -> None:
    assert (await send(client, tenant, "reused", CHAT)).status_code == 200
    for path, body in [
        ("/v1/chat/completions", CHAT | {"max_tokens": 13}),
        ("/v1/completions", BODIES["/v1/completions"]),
    ]:
        reply = await send(client, tenant, "reused", body, path)
        assert refusal(reply) == (400, "idempotency_key_reused", "Idempotency-Key")


async def test_another_projects_key_is_another_key(client: httpx.AsyncClient, tenant: Key, stranger: Key) -> None:
    mine = await send(client, tenant, "shared", CHAT)
    theirs = await send(client, stranger, "shared", CHAT | {"max_tokens": 3})
    assert (mine.status_code, theirs.status_code) == (200, 200)
    assert "idempotent-replayed" not in theirs.headers


async def test_a_key_that_may_not_call_the_model_reads_no_reply_of_one_that_may(
    house: House, client: httpx.AsyncClient, tenant: Key
) -> None:
    restricted = await another_key(house.dsn, tenant, models=["another-model"])
    assert (await send(client, tenant, "allowed", CHAT)).status_code == 200
    reply = await send(client, restricted, "allowed", CHAT)
    assert refusal(reply) == (400, "idempotency_key_reused", "Idempotency-Key")
    assert (await send(client, restricted, "its own", CHAT)).status_code == 404
    replay = await send(client, tenant, "allowed", CHAT)
    assert replay.headers["idempotent-replayed"] == "true"


@pytest.mark.parametrize("key", [b"", b"x" * 256, "käse".encode(), b"tab\there"])
async def test_a_malformed_or_repeated_key_is_refused(client: httpx.AsyncClient, tenant: Key, key: bytes) -> None:
    headers = [(b"authorization", f"Bearer {tenant.secret}".encode()), (b"idempotency-key", key)]
    reply = await client.post("/v1/chat/completions", json=CHAT, headers=headers)
    assert refusal(reply) == (400, "invalid_value", "Idempotency-Key")
    twice = [headers[0], (b"idempotency-key", b"a"), (b"idempotency-key", b"b")]
    reply = await client.post("/v1/chat/completions", json=CHAT, headers=twice)
    assert refusal(reply) == (400, "invalid_value", "Idempotency-Key")


async def test_an_idempotency_key_without_an_api_key_is_refused(client: httpx.AsyncClient, tenant: Key) -> None:
    await send(client, tenant, "private", CHAT)
    reply = await client.post("/v1/chat/completions", json=CHAT, headers={"idempotency-key": "private"})
    assert reply.status_code == 401


async def test_a_refused_request_leaves_the_key_free(client: httpx.AsyncClient, tenant: Key) -> None:
    refused: list[tuple[dict[str, Any], int]] = [
        (CHAT | {"model": "nothing"}, 404),
        (CHAT | {"temperature": 7}, 400),
        (CHAT | {"max_tokens": 100_000}, 400),
        # The engine refuses this one.
        (CHAT | {"structured_outputs": {"regex": "unsupported"}}, 400),
    ]
    for body, status in refused:
        for _ in range(2):
            reply = await send(client, tenant, "free", body)
            assert (reply.status_code, "idempotent-replayed" in reply.headers) == (status, False), reply.text
    reply = await send(client, tenant, "free", CHAT)
    assert (reply.status_code, "idempotent-replayed" in reply.headers) == (200, False)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_leaving_client_finds_the_whole_reply_when_it_comes_back(
    house: House, client: httpx.AsyncClient, tenant: Key, tables: Database, stream: bool
) -> None:
    async def num_begun() -> int:
        async with tables.acquire() as conn:
            sql = "SELECT count(*) FROM idempotency_keys WHERE project_id = $1"
            return int(await conn.fetchval(sql, tenant.project_id))

    body = CHAT | {"max_tokens": 100, "ignore_eos": True, "stream": stream}  # a fifth of a second
    if stream:
        headers = tenant.headers | {"idempotency-key": "left"}
        async with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as reply:
            async for _ in reply.aiter_bytes():
                break
    else:
        asking = asyncio.create_task(send(client, tenant, "left", body))
        await until(num_begun, pause_s=0.002)
        asking.cancel()
        await asyncio.wait([asking])
    again = await send(client, tenant, "left", body)
    assert again.headers["idempotent-replayed"] == "true"
    if stream:
        assert again.content.endswith(b"data: [DONE]\n\n")
    else:
        assert again.json()["usage"]["completion_tokens"] == 100
    ((_, completion_tokens),) = await ledger_rows(house.dsn, tenant.project_id, 1)
    assert completion_tokens == 100


async def test_a_request_whose_reply_was_lost_is_never_run_again(
    house: House, client: httpx.AsyncClient, tenant: Key, tables: Database
) -> None:
    await send(client, tenant, "lost", CHAT)
    async with tables.acquire() as conn:
        await conn.execute("UPDATE idempotency_keys SET state = 'lost' WHERE project_id = $1", tenant.project_id)
        await conn.execute("DELETE FROM kept_replies WHERE project_id = $1", tenant.project_id)
    for _ in range(2):
        reply = await send(client, tenant, "lost", CHAT)
        assert refusal(reply) == (409, "idempotency_reply_lost", "Idempotency-Key")
        assert reply.headers["x-should-retry"] == "false"
    assert len(await ledger_rows(house.dsn, tenant.project_id, 1)) == 1


async def test_a_project_that_keeps_no_replies_runs_a_key_once_all_the_same(
    house: House,
    client: httpx.AsyncClient,
    operator: httpx.AsyncClient,
    tenant: Key,
    tables: Database,
    cipher: Any,
) -> None:
    await send(client, tenant, "before", CHAT)
    changed = await operator.post(f"/projects/{tenant.project_id}", json={"keep_replies": False})
    assert changed.json()["keep_replies"] is False
    assert (await send(client, tenant, "after", CHAT)).status_code == 200
    for key in ("before", "after"):
        reply = await send(client, tenant, key, CHAT)
        assert refusal(reply) == (409, "idempotency_reply_not_kept", "Idempotency-Key")
        assert "does not allow" in reply.json()["error"]["message"]
    await Keeper(tables, cipher).work()
    await operator.post(f"/projects/{tenant.project_id}", json={"keep_replies": True})
    reply = await send(client, tenant, "before", CHAT)
    assert refusal(reply) == (409, "idempotency_reply_not_kept", "Idempotency-Key")
    async with tables.acquire() as conn:
        kept = await conn.fetchval("SELECT count(*) FROM kept_replies WHERE project_id = $1", tenant.project_id)
    assert kept == 0
    assert len(await ledger_rows(house.dsn, tenant.project_id, 2)) == 2


async def test_neither_the_reply_nor_the_key_is_readable_in_the_database(
    client: httpx.AsyncClient, tenant: Key, tables: Database
) -> None:
    secret = "the quick brown fox knows a secret"
    body = CHAT | {"messages": [{"role": "user", "content": secret}], "max_tokens": 60, "ignore_eos": True}
    reply = await send(client, tenant, f"order-{secret}", body)
    said = reply.json()["choices"][0]["message"]["content"]
    assert "quick brown" in said
    held = await all_rows_as_text(tables)
    assert tenant.project_id in held
    for text in ("quick brown", "knows a secret", f"order-{secret}"):
        assert text not in held
        assert text.encode().hex() not in held


async def test_swapped_replies_are_noticed(client: httpx.AsyncClient, tenant: Key, tables: Database) -> None:
    for key, max_tokens in (("one", 2), ("two", 3)):
        await send(client, tenant, key, CHAT | {"max_tokens": max_tokens})
    async with tables.acquire() as conn:
        await conn.execute(
            "UPDATE kept_replies a SET sealed = b.sealed FROM kept_replies b "
            "WHERE a.project_id = $1 AND b.project_id = $1 AND a.key_sha256 <> b.key_sha256",
            tenant.project_id,
        )
    reply = await send(client, tenant, "one", CHAT | {"max_tokens": 2})
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "content_unreadable")


async def test_a_key_lasts_a_day(client: httpx.AsyncClient, tenant: Key, tables: Database, cipher: Any) -> None:
    overdue = "UPDATE idempotency_keys SET expires_at = now() WHERE project_id = $1"
    first = await send(client, tenant, "daily", CHAT)
    async with tables.acquire() as conn:
        lasts = await conn.fetchval(
            "SELECT expires_at - now() FROM idempotency_keys WHERE project_id = $1", tenant.project_id
        )
        assert 86_300 < lasts.total_seconds() <= 86_400
        await conn.execute(overdue, tenant.project_id)
    second = await send(client, tenant, "daily", CHAT)
    assert "idempotent-replayed" not in second.headers and first.json()["id"] != second.json()["id"]
    async with tables.acquire() as conn:
        await conn.execute(overdue, tenant.project_id)
        await Keeper(tables, cipher).work()
        left = await conn.fetchval("SELECT count(*) FROM idempotency_keys WHERE project_id = $1", tenant.project_id)
    assert left == 0


async def test_a_request_without_a_key_is_not_stored(client: httpx.AsyncClient, tenant: Key, tables: Database) -> None:
    replies = [await client.post("/v1/chat/completions", json=CHAT, headers=tenant.headers) for _ in range(2)]
    assert replies[0].json()["id"] != replies[1].json()["id"]
    async with tables.acquire() as conn:
        kept = await conn.fetchval("SELECT count(*) FROM idempotency_keys WHERE project_id = $1", tenant.project_id)
    assert kept == 0
