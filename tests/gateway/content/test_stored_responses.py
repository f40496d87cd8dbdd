"""Stored responses: read, followed, referred to and deleted, by their own project alone, until its days are over."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import openai
import pytest
from prometheus_client import CollectorRegistry, Counter

from gateway.content.keeper import Keeper
from gateway.content.purge import Purger
from gateway.content.stored_responses import MAX_LINKS, Response, StoredResponses
from gateway.content.writes import Writes
from gateway.db.pool import Database
from gateway.domain.errors import ContentUnreadable
from gateway.domain.tenancy.principal import Principal
from gateway.support.cipher import Cipher
from tests.gateway.conftest import House
from tests.gateway.content.conftest import all_rows_as_text, another_key
from tests.gateway.limits.fleet import Key, make_key
from tests.gateway.openai.responses.laws import check, read

NEVER = "resp_aaaaaaaaaaaaaaaaaaaaaaaa"
HOSTILE = [
    "resp_x",
    "",
    "x" * 200,
    "resp_\0",
    "chatcmpl-aaaaaaaaaaaaaaaaaaaaaaaa",
    "resp_'; DROP TABLE projects; --",
    "é",
]


@pytest.fixture
async def storing(operator: httpx.AsyncClient, tenant: Key) -> Key:
    """Return the tenant's key, after allowing it to store responses for 30 days."""
    changed = await operator.post(f"/projects/{tenant.project_id}", json={"store_days": 30})
    assert changed.json()["store_days"] == 30
    return tenant


@pytest.fixture
async def api(house: House, storing: Key) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{house.url}/v1", api_key=storing.secret, max_retries=0) as client:
        yield client


async def create(api: openai.AsyncOpenAI, said: Any = "hello there", **fields: Any) -> Any:
    asked: dict[str, Any] = {"model": "tiny", "input": said, "max_output_tokens": 6} | fields
    return await api.responses.create(**asked)


async def test_a_stored_response_is_found_as_it_was_answered(
    api: openai.AsyncOpenAI, client: httpx.AsyncClient, storing: Key
) -> None:
    reply = await create(api, instructions="Be brief.", metadata={"a": "b"}, include=["message.output_text.logprobs"])
    assert reply.store is True
    assert (await api.responses.retrieve(reply.id)).model_dump() == reply.model_dump()
    body = {"model": "tiny", "input": "hello", "max_output_tokens": 6, "stream": True}
    streamed = await client.post("/v1/responses", json=body, headers=storing.headers)
    last = check(read(streamed.text))
    found = await client.get(f"/v1/responses/{last['id']}", headers=storing.headers)
    assert found.json() == last and last["store"]


async def test_the_items_of_the_input_are_listed_the_newest_first(api: openai.AsyncOpenAI) -> None:
    said: list[Any] = [{"role": "user", "content": f"text {number}"} for number in range(5)]
    reply = await create(api, said)
    part = reply.id.removeprefix("resp_")
    page = await api.responses.input_items.list(reply.id, limit=2)
    assert [item.id for item in page.data] == [f"msg_{part}_4", f"msg_{part}_3"]
    assert page.has_more and page.data[0].content[0].text == "text 4"  # type: ignore[union-attr]
    assert [item.id async for item in page] == [f"msg_{part}_{number}" for number in (4, 3, 2, 1, 0)]
    rest = await api.responses.input_items.list(reply.id, order="asc", after=f"msg_{part}_3")
    assert [item.id for item in rest.data] == [f"msg_{part}_4"]


async def test_a_response_goes_on_from_the_one_before_without_its_instructions(api: openai.AsyncOpenAI) -> None:
    first = await create(api, "one", instructions="Say little.")
    second = await create(api, "two", previous_response_id=first.id)
    third = await create(api, "three", previous_response_id=second.id, instructions="Say more.", max_output_tokens=200)
    assert third.previous_response_id == second.id
    chat: list[Any] = [
        {"role": "system", "content": "Say more."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": second.output_text},
        {"role": "user", "content": "three"},
    ]
    completion = await api.chat.completions.create(model="tiny", messages=chat, max_tokens=200)
    assert third.output_text == completion.choices[0].message.content
    assert completion.usage is not None and third.usage.input_tokens == completion.usage.prompt_tokens
    forks = [await create(api, "or else", previous_response_id=first.id) for _ in range(2)]
    assert forks[0].output_text == forks[1].output_text


async def test_a_tool_loop_may_send_only_the_outputs_of_calls(api: openai.AsyncOpenAI) -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    tools: list[Any] = [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}]
    ends = {"extra_body": {"stop_token_ids": [ord("~") - ord("!")]}, "max_output_tokens": 100}
    first = await create(api, f"{call}~", tools=tools, **ends)
    (made,) = first.output
    told: list[Any] = [{"type": "function_call_output", "call_id": made.call_id, "output": "42"}]
    second = await create(api, told, previous_response_id=first.id, max_output_tokens=300)
    assert "tool\n42" in second.output_text
    referred = [{"role": "user", "content": "hello"}, {"type": "item_reference", "id": made.id}, *told]
    assert "tool\n42" in (await create(api, referred, max_output_tokens=300)).output_text
    with pytest.raises(openai.BadRequestError) as refused:
        await create(api, "go on", previous_response_id=first.id)
    assert "No tool output found" in refused.value.message and refused.value.param == "input[0]"


async def test_the_tokens_of_an_input_are_those_that_are_billed(api: openai.AsyncOpenAI) -> None:
    tools: list[Any] = [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}]
    previous: str | None = None
    for number in range(3):
        asked: dict[str, Any] = {"input": "how much? " * number + "é", "instructions": "x" * number, "tools": tools}
        counted = await api.responses.input_tokens.count(model="tiny", previous_response_id=previous, **asked)
        reply = await create(api, asked.pop("input"), previous_response_id=previous, tool_choice="auto", **asked)
        assert counted.input_tokens == reply.usage.input_tokens
        previous = reply.id


async def test_the_next_response_may_follow_a_response_at_once(api: openai.AsyncOpenAI) -> None:
    previous: str | None = None
    for number in range(12):
        reply = await create(api, str(number), previous_response_id=previous, max_output_tokens=1)
        previous = reply.id
    assert reply.usage.input_tokens > 12 * 4


async def test_a_response_with_store_false_is_not_stored(api: openai.AsyncOpenAI) -> None:
    reply = await create(api, store=False)
    assert reply.store is False
    with pytest.raises(openai.NotFoundError):
        await api.responses.retrieve(reply.id)
    with pytest.raises(openai.BadRequestError):
        await create(api, previous_response_id=reply.id)


async def test_store_is_refused_or_reported_false_where_the_project_does_not_allow_it(
    client: httpx.AsyncClient, tenant: Key
) -> None:
    body = {"model": "tiny", "input": "hello", "max_output_tokens": 1}
    left_out = await client.post("/v1/responses", json=body, headers=tenant.headers)
    assert (left_out.status_code, left_out.json()["store"]) == (200, False)
    refused = await client.post("/v1/responses", json=body | {"store": True}, headers=tenant.headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "store_not_allowed")


async def test_another_projects_response_is_answered_exactly_like_one_that_does_not_exist(
    api: openai.AsyncOpenAI, client: httpx.AsyncClient, stranger: Key, storing: Key
) -> None:
    reply, gone = await create(api), await create(api)
    await api.responses.delete(gone.id)
    for method, path in [("GET", ""), ("GET", "/input_items"), ("DELETE", "")]:
        answers = []
        for headers, id in ((stranger.headers, reply.id), (storing.headers, gone.id), (storing.headers, NEVER)):
            answer = await client.request(method, f"/v1/responses/{id}{path}", headers=headers)
            answers.append((answer.status_code, answer.content.replace(id.encode(), b"ID")))
        assert answers[0] == answers[1] == answers[2]
        assert answers[0][0] == 404
    for field, code in (("previous_response_id", "previous_response_not_found"), ("input", "item_not_found")):
        bodies = set()
        for headers, id in (
            (stranger.headers, reply.id),
            (storing.headers, gone.id),
            (storing.headers, NEVER),
            *((storing.headers, each) for each in HOSTILE if each),
        ):
            item = f"msg_{id.removeprefix('resp_')}_1"
            sent = {"input": [{"type": "item_reference", "id": item}]} if field == "input" else {field: id}
            asked = {"model": "tiny", "input": "x", "max_output_tokens": 1} | sent
            answer = await client.post("/v1/responses", json=asked, headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, code), answer.text
            shown = json.dumps((item if field == "input" else id)[:100], ensure_ascii=False)[1:-1]
            bodies.add(json.dumps(answer.json(), ensure_ascii=False).replace(shown, "ID").replace("ID...", "ID"))
        assert len(bodies) == 1, bodies
    assert (await api.responses.retrieve(reply.id)).id == reply.id


@pytest.mark.parametrize("id", [each for each in HOSTILE if each])
async def test_a_hostile_id_is_no_response(client: httpx.AsyncClient, storing: Key, id: str) -> None:
    answer = await client.get(f"/v1/responses/{quote(id, safe='')}", headers=storing.headers)
    assert answer.status_code == 404, answer.text


async def test_no_response_may_follow_one_whose_predecessor_is_deleted(api: openai.AsyncOpenAI) -> None:
    first = await create(api)
    second = await create(api, previous_response_id=first.id)
    await api.responses.delete(first.id)
    assert (await api.responses.retrieve(second.id)).previous_response_id == first.id
    with pytest.raises(openai.BadRequestError) as refused:
        await create(api, previous_response_id=second.id)
    assert (refused.value.param, refused.value.code) == ("previous_response_id", "previous_response_not_found")


@pytest.mark.parametrize(
    ("path", "params", "param"),
    [
        ("/input_items", {"limit": "0"}, "limit"),
        ("/input_items", {"order": "up"}, "order"),
        ("/input_items", {"after": "msg_x"}, "after"),
        ("/input_items", {"include": "all"}, "include"),
        ("", {"stream": "true"}, "stream"),
        ("", {"starting_after": "3"}, "starting_after"),
    ],
)
async def test_a_wrong_query_is_refused_by_name(
    api: openai.AsyncOpenAI, client: httpx.AsyncClient, storing: Key, path: str, params: dict[str, str], param: str
) -> None:
    reply = await create(api, max_output_tokens=1)
    answer = await client.get(f"/v1/responses/{reply.id}{path}", params=params, headers=storing.headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_a_stored_response_is_gone_after_its_days(
    api: openai.AsyncOpenAI, storing: Key, tables: Database, cipher: Cipher
) -> None:
    old = await create(api)
    new = await create(api, previous_response_id=old.id)
    async with tables.acquire() as conn:
        await conn.execute("UPDATE stored_responses SET created_at = now() - interval '30 days' WHERE id = $1", old.id)
    with pytest.raises(openai.NotFoundError):
        await api.responses.retrieve(old.id)
    with pytest.raises(openai.BadRequestError):
        await create(api, previous_response_id=new.id)
    await Keeper(tables, cipher).work()
    async with tables.acquire() as conn:
        left = await conn.fetch("SELECT id FROM stored_responses WHERE project_id = $1", storing.project_id)
    assert [row["id"] for row in left] == [new.id]


async def test_a_purged_project_leaves_nothing(
    api: openai.AsyncOpenAI, storing: Key, operator: httpx.AsyncClient, tables: Database
) -> None:
    await create(api)
    await operator.post(f"/projects/{storing.project_id}/archive", json={"retention_days": 0})
    await Purger(tables).purge_all()
    async with tables.acquire() as conn:
        left = await conn.fetchval(
            "SELECT (SELECT count(*) FROM stored_responses WHERE project_id = p.id) "
            "FROM projects p WHERE id = $1 AND purged_at IS NOT NULL",
            storing.project_id,
        )
    assert left == 0


async def test_a_stored_response_is_not_readable_in_the_database(api: openai.AsyncOpenAI, tables: Database) -> None:
    secret = "jumps over the lazy dog and tells nobody"
    reply = await create(api, secret, instructions="of the lazy dog", metadata={"x": "lazy dog"}, max_output_tokens=60)
    assert "lazy dog" in reply.output_text
    held = await all_rows_as_text(tables)
    assert reply.id in held
    for text in ("lazy dog", "tells nobody"):
        assert text not in held
        assert text.encode().hex() not in held


async def test_a_key_that_is_held_to_models_sees_the_responses_of_these_alone(
    house: House, storing: Key, api: openai.AsyncOpenAI
) -> None:
    reply = await create(api)
    held = await another_key(house.dsn, storing, models=["tiny:pirate"])
    async with openai.AsyncOpenAI(base_url=f"{house.url}/v1", api_key=held.secret, max_retries=0) as other:
        for call in (other.responses.retrieve, other.responses.delete, other.responses.input_items.list):
            with pytest.raises(openai.NotFoundError):
                await call(reply.id)  # type: ignore[operator]
    same = await another_key(house.dsn, storing, models=["tiny"])
    async with openai.AsyncOpenAI(base_url=f"{house.url}/v1", api_key=same.secret, max_retries=0) as other:
        assert (await other.responses.retrieve(reply.id)).id == reply.id


async def test_a_deletion_is_in_the_audit_log(
    storing: Key, api: openai.AsyncOpenAI, operator: httpx.AsyncClient
) -> None:
    reply = await create(api)
    await api.responses.delete(reply.id)
    with pytest.raises(openai.NotFoundError):
        await api.responses.delete(reply.id)
    params = {"event_types[]": "stored_response.deleted", "project_ids[]": storing.project_id}
    (row,) = (await operator.get("/audit_logs", params=params)).json()["data"]
    assert row["stored_response.deleted"]["id"] == reply.id
    assert row["actor"]["api_key"]["id"] == storing.id


def make_response(number: int, *, num_bytes: int = 100) -> Response:
    return Response(
        id=f"resp_{number}",
        model="tiny",
        parent_id=f"resp_{number - 1}" if number else None,
        input=b"[%d]" % number,
        output=b"x" * num_bytes,
        response=b"{}",
    )


@pytest.fixture
async def responses_and_caller(database: Database, dsn: str, cipher: Cipher) -> tuple[StoredResponses, Principal]:
    key = await make_key(dsn, "acme")
    async with database.acquire() as conn:
        await conn.execute("UPDATE projects SET store_days = 1")
    writes = Writes(Counter("lost", "x", ["kind"], registry=CollectorRegistry()))
    principal = Principal(key.organization_id, key.project_id, key.id, frozenset())
    return StoredResponses(database, cipher, writes), principal


async def test_each_turn_is_stored_once_and_a_chain_is_read_up_to_its_bounds(
    database: Database, responses_and_caller: tuple[StoredResponses, Principal]
) -> None:
    stored, caller = responses_and_caller
    for number in range(200):
        assert await stored.store(caller.project_id, make_response(number))
    followed = await stored.chain(caller, "resp_199")
    assert followed.turns is not None
    assert [turn.input for turn in followed.turns] == [b"[%d]" % number for number in range(200)]
    async with database.acquire() as conn:
        sizes = await conn.fetch(
            "SELECT octet_length(sealed_input) + octet_length(sealed_output) AS size FROM stored_responses"
        )
        assert max(row["size"] for row in sizes) - min(row["size"] for row in sizes) <= 2, "whatever came before"
        await conn.execute(
            "INSERT INTO stored_responses SELECT project_id, 'resp_' || n, now(), 'tiny', 'resp_' || n - 1, "
            "content_key, sealed_input, sealed_output, '' FROM stored_responses, generate_series(200, $1::integer) n "
            "WHERE id = 'resp_0'",
            MAX_LINKS + 10,
        )
    too_long = await stored.chain(caller, f"resp_{MAX_LINKS}")
    assert (too_long.turns, too_long.is_too_long) == (None, True)
    gap = await stored.chain(caller, "resp_-5")
    assert (gap.turns, gap.is_too_long) == (None, False)


async def test_a_chain_of_too_many_bytes_is_not_read(
    database: Database, cipher: Cipher, responses_and_caller: tuple[StoredResponses, Principal]
) -> None:
    stored, caller = responses_and_caller
    for number in range(3):
        assert await stored.store(caller.project_id, make_response(number, num_bytes=7000))
    writes = Writes(Counter("lost", "x", ["kind"], registry=CollectorRegistry()))
    bounded = StoredResponses(database, cipher, writes, max_chain_bytes=16_000)
    assert (await bounded.chain(caller, "resp_1")).turns is not None
    too_long = await bounded.chain(caller, "resp_2")
    assert (too_long.turns, too_long.is_too_long) == (None, True)
    assert len(await stored.turns(caller, [f"resp_{number}" for number in range(3)])) == 3


async def test_a_too_large_or_forbidden_response_is_reported_as_not_stored(
    database: Database, responses_and_caller: tuple[StoredResponses, Principal]
) -> None:
    stored, caller = responses_and_caller
    assert not await stored.store(caller.project_id, make_response(0, num_bytes=17 << 20))
    assert await stored.store(caller.project_id, make_response(0)) and await stored.store(
        caller.project_id, make_response(0)
    )
    async with database.acquire() as conn:
        await conn.execute("UPDATE projects SET store_days = 0")
    assert not await stored.store(caller.project_id, make_response(1))


async def test_a_database_that_is_away_is_told_in_the_reply(
    dsn: str, responses_and_caller: tuple[StoredResponses, Principal], database: Database
) -> None:
    stored, caller = responses_and_caller
    await database.close()
    assert not await stored.store(caller.project_id, make_response(0))


async def test_sealed_content_is_bound_to_its_place(
    database: Database, responses_and_caller: tuple[StoredResponses, Principal]
) -> None:
    stored, caller = responses_and_caller
    for number in range(2):
        assert await stored.store(caller.project_id, msgspec.structs.replace(make_response(number), parent_id=None))
    async with database.acquire() as conn:
        await conn.execute("UPDATE stored_responses SET sealed_output = sealed_input WHERE id = 'resp_0'")
        await conn.execute(
            "UPDATE stored_responses SET sealed_input = other.sealed_input FROM stored_responses other "
            "WHERE stored_responses.id = 'resp_1' AND other.id = 'resp_0'"
        )
    for id in ("resp_0", "resp_1"):
        with pytest.raises(ContentUnreadable, match="cannot be decrypted"):
            await stored.chain(caller, id)
