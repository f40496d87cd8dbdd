"""Conversations are made, read, added to by hand and by responses, and deleted, by their own project alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from prometheus_client import CollectorRegistry, Counter

from gateway.content.conversations import Conversations, ItemJson
from gateway.content.keeper import Keeper
from gateway.content.purge import Purger
from gateway.content.writes import Writes
from gateway.db.pool import Database
from gateway.domain.tenancy.principal import Principal
from gateway.support.cipher import Cipher
from tests.gateway.conftest import House
from tests.gateway.content.conftest import all_rows_as_text, another_key
from tests.gateway.limits.fleet import Key, make_key
from tests.gateway.openai.responses.laws import check, read

NEVER = "conv_aaaaaaaaaaaaaaaaaaaaaaaa"


@pytest.fixture
async def storing(operator: httpx.AsyncClient, tenant: Key) -> Key:
    """Return the tenant's key, after allowing it to store content for 30 days."""
    await operator.post(f"/projects/{tenant.project_id}", json={"store_days": 30})
    return tenant


@pytest.fixture
async def api(house: House, storing: Key) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{house.url}/v1", api_key=storing.secret, max_retries=0) as client:
        yield client


async def answer(api: openai.AsyncOpenAI, said: str, conversation: str, **fields: Any) -> Any:
    asked: dict[str, Any] = {"model": "tiny", "input": said, "max_output_tokens": 6, "conversation": conversation}
    return await api.responses.create(**asked | fields)


async def list_items(api: openai.AsyncOpenAI, conversation: str, **query: Any) -> list[Any]:
    return [item async for item in api.conversations.items.list(conversation, **{"order": "asc", **query})]


def text_of(item: Any) -> str:
    return str(item.content[0].text)


async def test_a_conversation_is_made_changed_and_deleted(api: openai.AsyncOpenAI) -> None:
    items: list[Any] = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
    made = await api.conversations.create(items=items, metadata={"a": "b"})
    assert (made.object, made.metadata) == ("conversation", {"a": "b"})
    assert (await api.conversations.retrieve(made.id)).model_dump() == made.model_dump()
    changed = await api.conversations.update(made.id, metadata={"c": "d"})
    assert changed.metadata == {"c": "d"} == (await api.conversations.retrieve(made.id)).metadata
    added = await api.conversations.items.create(made.id, items=[{"role": "user", "content": "three"}])
    found = await list_items(api, made.id, limit=1)
    assert [text_of(item) for item in found] == ["one", "two", "three"]
    assert found[-1].id == added.data[0].id
    assert [item.id for item in found] == [item.id for item in (await list_items(api, made.id, order="desc"))[::-1]]
    assert text_of(await api.conversations.items.retrieve(found[1].id, conversation_id=made.id)) == "two"
    assert (await api.conversations.items.delete(found[1].id, conversation_id=made.id)).id == made.id
    assert [text_of(item) for item in await list_items(api, made.id)] == ["one", "three"]
    assert (await api.conversations.delete(made.id)).deleted
    for call in (api.conversations.retrieve, api.conversations.delete, api.conversations.items.list):
        with pytest.raises(openai.NotFoundError):
            await call(made.id)  # type: ignore[operator]
    assert (await api.conversations.create()).metadata == {}


async def test_responses_go_on_from_a_conversation_and_add_to_it(
    api: openai.AsyncOpenAI, client: httpx.AsyncClient, storing: Key
) -> None:
    made = await api.conversations.create(items=[{"role": "system", "content": "Be brief."}])
    first = await answer(api, "one", made.id, store=False)
    assert first.conversation.id == made.id and first.store is False
    body = {"model": "tiny", "input": "two", "max_output_tokens": 200, "conversation": {"id": made.id}, "stream": True}
    last = check(read((await client.post("/v1/responses", json=body, headers=storing.headers)).text))
    chat: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "two"},
    ]
    completion = await api.chat.completions.create(model="tiny", messages=chat, max_tokens=200)
    assert last["output"][0]["content"][0]["text"] == completion.choices[0].message.content
    assert last["conversation"] == {"id": made.id}
    items = await list_items(api, made.id)
    assert [item.role for item in items] == ["system", "user", "assistant", "user", "assistant"]
    assert items[-1].id == last["output"][0]["id"] and items[2].id == first.output[0].id
    counted = await api.responses.input_tokens.count(model="tiny", conversation=made.id, input="three")
    assert counted.input_tokens == (await answer(api, "three", made.id)).usage.input_tokens


async def test_turns_that_run_at_once_lie_one_behind_the_other(api: openai.AsyncOpenAI) -> None:
    made = await api.conversations.create()
    await asyncio.gather(*(answer(api, f"turn {number}", made.id) for number in range(10)))
    items = await list_items(api, made.id, limit=100)
    assert [item.role for item in items] == ["user", "assistant"] * 10
    parts = [item.id.split("_")[1] for item in items]
    assert parts[::2] == parts[1::2]


async def test_a_response_whose_conversation_is_deleted_meanwhile_says_so(api: openai.AsyncOpenAI) -> None:
    made = await api.conversations.create()
    events = [event async for event in until_deleted(api, made.id)]
    assert events[0].response.conversation.id == made.id
    assert events[-1].response.conversation is None


async def until_deleted(api: openai.AsyncOpenAI, conversation: str) -> AsyncIterator[Any]:
    """Yield the events of a response, and delete its conversation at the first text."""
    is_deleted = False
    async for event in await answer(api, "hello there", conversation, max_output_tokens=300, stream=True):
        yield event
        if event.type == "response.output_text.delta" and not is_deleted:
            await api.conversations.delete(conversation)
            is_deleted = True


async def test_another_projects_conversation_is_answered_exactly_like_one_that_does_not_exist(
    api: openai.AsyncOpenAI, client: httpx.AsyncClient, stranger: Key, storing: Key
) -> None:
    made = await api.conversations.create(items=[{"role": "user", "content": "one"}])
    (item,) = await list_items(api, made.id)
    gone = await api.conversations.create()
    await api.conversations.delete(gone.id)
    for method, path, body in [
        ("GET", "", None),
        ("POST", "", {"metadata": {}}),
        ("DELETE", "", None),
        ("GET", "/items", None),
        ("POST", "/items", {"items": []}),
        ("GET", f"/items/{item.id}", None),
        ("DELETE", f"/items/{item.id}", None),
    ]:
        answers = []
        for headers, id in (
            (stranger.headers, made.id),
            (storing.headers, gone.id),
            (storing.headers, NEVER),
            (storing.headers, "x"),
        ):
            reply = await client.request(method, f"/v1/conversations/{id}{path}", json=body, headers=headers)
            answers.append((reply.status_code, reply.content.replace(f"'{id}'".encode(), b"'ID'")))
        assert len(set(answers)) == 1 and answers[0][0] == 404, answers
    errors = set()
    for headers, id in ((stranger.headers, made.id), (storing.headers, gone.id), (storing.headers, NEVER)):
        asked = {"model": "tiny", "input": "x", "conversation": id}
        reply = await client.post("/v1/responses", json=asked, headers=headers)
        errors.add((reply.status_code, reply.content.replace(id.encode(), b"ID")))
    assert len(errors) == 1 and errors.pop()[0] == 400
    assert len(await list_items(api, made.id)) == 1


@pytest.mark.parametrize(
    ("method", "path", "body", "param"),
    [
        ("POST", "", {"items": [{"role": "user", "content": "x"}] * 21}, "items"),
        ("POST", "", {"items": [{"role": "user"}]}, "items[0].content"),
        ("POST", "", {"metadata": {"a": 1}}, "metadata"),
        ("POST", "", {"surprise": 1}, "surprise"),
        ("GET", "/{id}/items?limit=0", None, "limit"),
        ("GET", "/{id}/items?after=msg_x", None, "after"),
        ("POST", "/{id}/items", {"items": [{"type": "item_reference", "id": "msg_x"}]}, "items[0].id"),
        ("POST", "/{id}", {}, "metadata"),
    ],
)
async def test_a_wrong_request_is_refused_by_name(
    api: openai.AsyncOpenAI, client: httpx.AsyncClient, storing: Key, method: str, path: str, body: Any, param: str
) -> None:
    made = await api.conversations.create()
    url = f"/v1/conversations{path.replace('{id}', made.id)}"
    reply = await client.request(method, url, json=body, headers=storing.headers)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text


async def test_a_project_that_stores_nothing_has_no_conversations(client: httpx.AsyncClient, tenant: Key) -> None:
    refused = await client.post("/v1/conversations", json={}, headers=tenant.headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "store_not_allowed")


async def test_conversations_expire_are_purged_and_their_deletion_is_audited(
    api: openai.AsyncOpenAI, storing: Key, tables: Database, cipher: Cipher, operator: httpx.AsyncClient
) -> None:
    secret = "jumps over the lazy dog"
    old = await api.conversations.create(items=[{"role": "user", "content": secret}], metadata={"x": secret})
    new = await api.conversations.create(items=[{"role": "user", "content": "x"}])
    gone = await api.conversations.create()
    await api.conversations.delete(gone.id)
    held = await all_rows_as_text(tables)
    assert old.id in held and "lazy dog" not in held and b"lazy dog".hex() not in held
    params = {"event_types[]": "conversation.deleted", "project_ids[]": storing.project_id}
    (row,) = (await operator.get("/audit_logs", params=params)).json()["data"]
    assert row["conversation.deleted"]["id"] == gone.id
    async with tables.acquire() as conn:
        await conn.execute("UPDATE conversations SET changed_at = now() - interval '30 days' WHERE id = $1", old.id)
    with pytest.raises(openai.NotFoundError):
        await api.conversations.retrieve(old.id)
    await Keeper(tables, cipher).work()
    assert await conversations_with_items(tables, storing) == [new.id]
    await operator.post(f"/projects/{storing.project_id}/archive", json={"retention_days": 0})
    await Purger(tables).purge_all()
    assert await conversations_with_items(tables, storing) == []


async def conversations_with_items(tables: Database, key: Key) -> list[str]:
    """Return the id of the conversation of each item that the project has in the database."""
    async with tables.acquire() as conn:
        rows = await conn.fetch("SELECT conversation_id FROM conversation_items WHERE project_id = $1", key.project_id)
    return [row["conversation_id"] for row in rows]


async def test_a_key_that_is_held_to_models_sees_no_conversation_of_others(
    house: House, storing: Key, api: openai.AsyncOpenAI
) -> None:
    made = await api.conversations.create()
    held = await another_key(house.dsn, storing, models=["tiny:pirate"])
    async with openai.AsyncOpenAI(base_url=f"{house.url}/v1", api_key=held.secret, max_retries=0) as other:
        assert (await other.conversations.retrieve(made.id)).id == made.id, "nobody has added to it yet"
        await answer(api, "hello", made.id)
        with pytest.raises(openai.NotFoundError):
            await other.conversations.retrieve(made.id)
        with pytest.raises(openai.NotFoundError):
            await other.conversations.items.create(made.id, items=[{"role": "user", "content": "x"}])


async def test_a_conversation_grows_up_to_its_bound(database: Database, dsn: str, cipher: Cipher) -> None:
    key = await make_key(dsn, "acme")
    async with database.acquire() as conn:
        await conn.execute("UPDATE projects SET store_days = 1")
    caller = Principal(key.organization_id, key.project_id, key.id, frozenset())
    writes = Writes(Counter("lost", "x", ["kind"], registry=CollectorRegistry()))
    kept = Conversations(database, cipher, writes, max_bytes=4096)
    made = await kept.create(caller, NEVER, {}, [ItemJson("msg_1", b"1")])
    assert made is not None
    assert await kept.append(caller, NEVER, [ItemJson(f"msg_{number}", b"1") for number in (2, 3)]) == "done"
    assert await kept.append(caller, NEVER, [ItemJson(f"msg_{number}", b"1") for number in (4, 5)]) == "too_long"
    assert not await kept.add_answer(caller, NEVER, [ItemJson("msg_6", b"1" * 1500)], model="tiny")
    assert await kept.delete_item(caller, NEVER, "msg_1") is not None
    assert await kept.add_answer(caller, NEVER, [ItemJson("msg_6", b"1" * 1500)], model="tiny")
    items = await kept.items(caller, NEVER)
    assert items is not None and [item.id for item in items] == ["msg_2", "msg_3", "msg_6"]
