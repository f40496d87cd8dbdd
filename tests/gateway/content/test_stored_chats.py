"""`store` through OpenAI's own client: listed, read, changed and deleted, by the project alone, until its days are
over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from gateway.content.keeper import Keeper
from gateway.content.purge import Purger
from gateway.db.pool import Database
from tests.gateway.conftest import House
from tests.gateway.content.conftest import all_rows_as_text, another_key
from tests.gateway.limits.fleet import Key

MESSAGES: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "hello there"}]},
]
NEVER = "chatcmpl-aaaaaaaaaaaaaaaaaaaaaaaa"


@pytest.fixture
async def storing(operator: httpx.AsyncClient, tenant: Key) -> Key:
    """Return the tenant's key, after allowing it to store completions for 30 days."""
    changed = await operator.post(f"/projects/{tenant.project_id}", json={"store_days": 30})
    assert changed.json()["store_days"] == 30
    return tenant


@pytest.fixture
async def api(house: House, storing: Key) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{house.url}/v1", api_key=storing.secret, max_retries=0) as client:
        yield client


async def store_chat(api: openai.AsyncOpenAI, **fields: Any) -> Any:
    asked: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "max_tokens": 6, "store": True} | fields
    return await api.chat.completions.create(**asked)


async def test_a_stored_chat_is_found_by_its_id_with_its_messages(api: openai.AsyncOpenAI) -> None:
    asked: dict[str, Any] = {"seed": 7, "temperature": 0.5, "response_format": {"type": "text"}}
    reply = await store_chat(api, metadata={"topic": "greeting"}, n=2, logprobs=True, top_logprobs=2, **asked)
    assert reply.metadata == {"topic": "greeting"}
    found = await api.chat.completions.retrieve(reply.id)
    left = dict.fromkeys(("top_p", "presence_penalty", "frequency_penalty", "tools", "tool_choice"))
    extra = asked | left | {"request_id": f"req_{reply.id.removeprefix('chatcmpl-')}"}
    assert found.model_dump() == reply.model_dump() | extra
    messages = (await api.chat.completions.messages.list(reply.id)).data
    assert [message.id for message in messages] == [f"{reply.id}-0", f"{reply.id}-1"]
    assert [message.role for message in messages] == ["system", "user"]
    assert (messages[0].content, messages[0].content_parts) == ("Be brief.", None)
    assert (messages[1].content, messages[1].content_parts[0].text) == (None, "hello there")
    page = await api.chat.completions.messages.list(reply.id, order="desc", limit=1)
    assert ([message.id for message in page.data], page.has_more) == ([f"{reply.id}-1"], True)
    page = await api.chat.completions.messages.list(reply.id, after=f"{reply.id}-0")
    assert [message.id for message in page.data] == [f"{reply.id}-1"]


async def test_a_stream_is_stored_as_the_whole_reply_would_be(api: openai.AsyncOpenAI) -> None:
    whole = await store_chat(api, seed=1)
    chunks = [chunk async for chunk in await store_chat(api, seed=1, stream=True)]
    found = await api.chat.completions.retrieve(chunks[0].id)
    assert found.choices == whole.choices
    assert found.usage.completion_tokens == whole.usage.completion_tokens == 6


async def test_lists_are_paged_filtered_and_ordered(api: openai.AsyncOpenAI) -> None:
    ids = [(await store_chat(api, metadata={"even": str(n % 2 == 0), "all": "yes"})).id for n in range(4)]
    other = (await store_chat(api)).id

    async def listed(**query: Any) -> list[str]:
        return [each.id async for each in api.chat.completions.list(**query)]

    assert await listed() == [*ids, other]
    assert await listed(limit=2) == [*ids, other]  # three pages
    assert await listed(order="desc") == [other, *ids[::-1]]
    assert await listed(after=ids[2]) == [ids[3], other]
    assert await listed(metadata={"even": "True"}) == ids[::2]
    assert await listed(metadata={"even": "True", "all": "yes"}) == ids[::2]
    assert await listed(metadata={"even": "yes"}) == []
    assert await listed(model="tiny") == [*ids, other]
    assert await listed(model="tiny:none") == []


async def test_metadata_is_replaced_and_found_anew(api: openai.AsyncOpenAI) -> None:
    reply = await store_chat(api, metadata={"stage": "draft"})
    changed = await api.chat.completions.update(reply.id, metadata={"stage": "final"})
    assert (changed.id, changed.metadata) == (reply.id, {"stage": "final"})
    assert (await api.chat.completions.retrieve(reply.id)).metadata == {"stage": "final"}
    assert [each.id async for each in api.chat.completions.list(metadata={"stage": "draft"})] == []
    assert [each.id async for each in api.chat.completions.list(metadata={"stage": "final"})] == [reply.id]
    assert (await api.chat.completions.update(reply.id, metadata=None)).metadata == {}


async def test_a_deleted_chat_is_gone(api: openai.AsyncOpenAI) -> None:
    reply = await store_chat(api)
    deleted = await api.chat.completions.delete(reply.id)
    assert (deleted.id, deleted.deleted, deleted.object) == (reply.id, True, "chat.completion.deleted")
    for call in (api.chat.completions.retrieve, api.chat.completions.delete, api.chat.completions.messages.list):
        with pytest.raises(openai.NotFoundError):
            await call(reply.id)


async def test_without_store_nothing_is_stored(api: openai.AsyncOpenAI) -> None:
    for store in (False, None):
        await store_chat(api, store=store)
    assert [each.id async for each in api.chat.completions.list()] == []


async def test_another_projects_chat_is_answered_exactly_like_one_that_does_not_exist(
    api: openai.AsyncOpenAI, client: httpx.AsyncClient, stranger: Key
) -> None:
    reply = await store_chat(api)
    for method, path, body in [
        ("GET", "", None),
        ("GET", "/messages", None),
        ("POST", "", {"metadata": {"mine": "now"}}),
        ("DELETE", "", None),
    ]:
        answers = []
        for chat_id in (reply.id, NEVER):
            url = f"/v1/chat/completions/{chat_id}{path}"
            answer = await client.request(method, url, json=body, headers=stranger.headers)
            answers.append((answer.status_code, answer.content.replace(chat_id.encode(), b"ID")))
        assert answers[0] == answers[1]
        assert answers[0][0] == 404
    listing = await client.get("/v1/chat/completions", headers=stranger.headers)
    assert listing.json() == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
    after = await client.get("/v1/chat/completions", params={"after": reply.id}, headers=stranger.headers)
    assert (after.status_code, after.json()["error"]["param"]) == (400, "after")
    assert (await api.chat.completions.retrieve(reply.id)).id == reply.id


WRONG_QUERIES = [
    ("limit", "0"),
    ("limit", "101"),
    ("limit", "some"),
    ("order", "up"),
    ("after", NEVER),
    ("surprise", "1"),
    ("metadata", "x"),
    ("after", "\0"),
]


@pytest.mark.parametrize(("name", "value"), WRONG_QUERIES)
async def test_a_wrong_query_is_refused_by_name(client: httpx.AsyncClient, tenant: Key, name: str, value: str) -> None:
    reply = await client.get("/v1/chat/completions", params={name: value}, headers=tenant.headers)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, name)


async def test_store_is_refused_at_once_where_the_project_does_not_allow_it(
    api: openai.AsyncOpenAI, operator: httpx.AsyncClient, client: httpx.AsyncClient, tenant: Key
) -> None:
    reply = await store_chat(api)
    await operator.post(f"/projects/{tenant.project_id}", json={"store_days": 0})
    assert [each.id async for each in api.chat.completions.list()] == []
    with pytest.raises(openai.NotFoundError):
        await api.chat.completions.retrieve(reply.id)
    asked = {"model": "tiny", "messages": MESSAGES, "store": True}
    for _ in range(100):  # each gateway hears of it within a second
        refused = await client.post("/v1/chat/completions", json=asked | {"max_tokens": 1}, headers=tenant.headers)
        if refused.status_code == 400:
            break
    error = refused.json()["error"]
    assert (error["param"], error["code"]) == ("store", "store_not_allowed")


async def test_a_stored_chat_is_gone_after_its_days(
    api: openai.AsyncOpenAI, storing: Key, tables: Database, cipher: Any
) -> None:
    old, new = [(await store_chat(api)).id for _ in range(2)]
    async with tables.acquire() as conn:
        await conn.execute("UPDATE stored_chats SET created_at = now() - interval '30 days' WHERE id = $1", old)
    assert [each.id async for each in api.chat.completions.list()] == [new]
    await Keeper(tables, cipher).work()
    async with tables.acquire() as conn:
        left = await conn.fetch("SELECT id FROM stored_chats WHERE project_id = $1", storing.project_id)
    assert [row["id"] for row in left] == [new]


async def test_a_purged_project_leaves_nothing(
    api: openai.AsyncOpenAI, storing: Key, operator: httpx.AsyncClient, tables: Database
) -> None:
    await store_chat(api, extra_headers={"Idempotency-Key": "kept"})
    await operator.post(f"/projects/{storing.project_id}/archive", json={"retention_days": 0})
    await Purger(tables).purge_all()
    async with tables.acquire() as conn:
        left = await conn.fetchval(
            "SELECT (SELECT count(*) FROM stored_chats WHERE project_id = p.id) + "
            "(SELECT count(*) FROM idempotency_keys WHERE project_id = p.id) "
            "FROM projects p WHERE id = $1 AND purged_at IS NOT NULL",
            storing.project_id,
        )
    assert left == 0


async def test_a_stored_chat_is_not_readable_in_the_database(api: openai.AsyncOpenAI, tables: Database) -> None:
    secret = "jumps over the lazy dog and tells nobody"
    reply = await store_chat(
        api,
        messages=[{"role": "user", "content": secret}],
        metadata={"whose": "the lazy dog's own"},
        max_tokens=60,
    )
    assert "lazy dog" in reply.choices[0].message.content
    held = await all_rows_as_text(tables)
    assert reply.id in held
    for text in ("lazy dog", "tells nobody"):
        assert text not in held
        assert text.encode().hex() not in held


async def test_a_key_that_is_held_to_models_sees_the_chats_of_these_alone(
    house: House, storing: Key, api: openai.AsyncOpenAI
) -> None:
    reply = await store_chat(api)
    held = await another_key(house.dsn, storing, models=["tiny:pirate"])
    async with openai.AsyncOpenAI(base_url=f"{house.url}/v1", api_key=held.secret, max_retries=0) as other:
        completions = other.chat.completions
        assert [each.id async for each in completions.list()] == []
        assert [each.id async for each in completions.list(metadata={"a": "b"})] == []
        for call in (
            completions.retrieve(reply.id),
            completions.messages.list(reply.id),
            completions.update(reply.id, metadata={"mine": "now"}),
            completions.delete(reply.id),
        ):
            with pytest.raises(openai.NotFoundError):
                await call
        with pytest.raises(openai.BadRequestError):
            await completions.list(after=reply.id)
    same = await another_key(house.dsn, storing, models=["tiny"])
    async with openai.AsyncOpenAI(base_url=f"{house.url}/v1", api_key=same.secret, max_retries=0) as other:
        assert (await other.chat.completions.retrieve(reply.id)).metadata == {}
        assert [each.id async for each in other.chat.completions.list()] == [reply.id]


async def test_a_deletion_is_in_the_audit_log(
    house: House, storing: Key, api: openai.AsyncOpenAI, operator: httpx.AsyncClient
) -> None:
    reply = await store_chat(api)
    await api.chat.completions.delete(reply.id)
    with pytest.raises(openai.NotFoundError):
        await api.chat.completions.delete(reply.id)
    params = {"event_types[]": "stored_completion.deleted", "project_ids[]": storing.project_id}
    (row,) = (await operator.get("/audit_logs", params=params)).json()["data"]
    assert row["stored_completion.deleted"]["id"] == reply.id
    assert (row["actor"]["api_key"]["id"], row["actor"]["api_key"]["ip_address"]) == (storing.id, "127.0.0.1")
