"""The content log of a project's requests: redacted, deleted after its days, read by few people, reads recorded."""

from __future__ import annotations

import asyncio
import datetime
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from gateway.content.keeper import Keeper
from gateway.content.purge import Purger
from gateway.db.pool import Database
from gateway.support.cipher import Cipher
from tests.gateway.conftest import House
from tests.gateway.content.conftest import all_rows_as_text, connected
from tests.gateway.limits.fleet import Key
from tests.patience import PATIENCE_S

PASSWORD = "a long and good password"
NUMBERS = itertools.count(1)
TEXT = "the quick brown fox, quick@fox.example, jumps"
SHOWN = "the quick brown fox, [email], jumps"


@pytest.fixture
async def logging(operator: httpx.AsyncClient, tenant: Key) -> Key:
    """Return the tenant's key, after setting that its requests are logged for 7 days."""
    changed = await operator.post(f"/projects/{tenant.project_id}", json={"log_content_days": 7})
    assert changed.json()["log_content_days"] == 7
    return tenant


@asynccontextmanager
async def person(house: House, operator: httpx.AsyncClient, role: str | None) -> AsyncIterator[httpx.AsyncClient]:
    email = f"reader-{next(NUMBERS)}@example.com"
    made = await operator.post("/users", json={"email": email, "role": role, "password": PASSWORD})
    assert made.status_code == 200, made.text
    async with httpx.AsyncClient(base_url=f"{house.url}/v1/organization", timeout=PATIENCE_S) as client:
        login = await client.post(f"{house.url}/admin/v1/login", json={"email": email, "password": PASSWORD})
        assert login.status_code == 200, login.text
        client.headers["x-csrf-token"] = login.json()["csrf_token"]
        client.headers["x-user-id"] = made.json()["id"]  # for tests; the server does not look
        yield client


@pytest.fixture(scope="module")
def login_of_owner(house: House) -> dict[str, str]:
    """Return the headers of one owner who is logged in for all tests, since each login takes long."""

    async def headers() -> dict[str, str]:
        async with connected(house) as operator, person(house, operator, "owner") as client:
            cookies = [f"{name}={value}" for name, value in client.cookies.items()]
            return {"cookie": "; ".join(cookies)} | {
                name: client.headers[name] for name in ("x-csrf-token", "x-user-id")
            }

    return asyncio.run(headers())


@pytest.fixture
async def owner(house: House, login_of_owner: dict[str, str]) -> AsyncIterator[httpx.AsyncClient]:
    base_url = f"{house.url}/v1/organization"
    async with httpx.AsyncClient(base_url=base_url, headers=login_of_owner, timeout=PATIENCE_S) as client:
        yield client


def path(tenant: Key, request_id: str) -> str:
    return f"/projects/{tenant.project_id}/requests/{request_id}/content"


async def get_until_found(owner: httpx.AsyncClient, url: str) -> httpx.Response:
    """Send a GET until its status is not 404, at most 400 times, and return the last answer."""
    for _ in range(400):
        reply = await owner.get(url)
        if reply.status_code != 404:
            break
        await asyncio.sleep(0.05)
    return reply


async def logged(owner: httpx.AsyncClient, tenant: Key, request_id: str) -> dict[str, Any]:
    """Wait until the content of a request is logged, and return it."""
    reply = await get_until_found(owner, path(tenant, request_id))
    assert reply.status_code == 200, reply.text
    content: dict[str, Any] = reply.json()
    return content


async def chat(client: httpx.AsyncClient, tenant: Key, **fields: Any) -> httpx.Response:
    body = {"model": "tiny", "messages": [{"role": "user", "content": TEXT}], "max_tokens": 80} | fields
    reply = await client.post("/v1/chat/completions", json=body, headers=tenant.headers)
    assert reply.status_code == 200, reply.text
    return reply


async def count(tables: Database, tenant: Key) -> int:
    async with tables.acquire() as conn:
        return int(
            await conn.fetchval("SELECT count(*) FROM request_contents WHERE project_id = $1", tenant.project_id)
        )


async def test_a_request_by_a_route_is_logged_once_with_what_it_said(
    client: httpx.AsyncClient, operator: httpx.AsyncClient, owner: httpx.AsyncClient, logging: Key
) -> None:
    cascade = {"nodes": [{"target": "tiny"}, {"target": "tiny"}], "accept": {"regex": "^never said$"}}
    route = {"name": "careful", "document": {"root": {"cascade": cascade}}}
    made = await operator.post(f"/projects/{logging.project_id}/routes", json=route)
    assert made.status_code == 200, made.text
    body = {"model": "careful", "messages": [{"role": "user", "content": TEXT}], "max_tokens": 8}
    async with asyncio.timeout(PATIENCE_S):
        while (reply := await client.post("/v1/chat/completions", json=body, headers=logging.headers)).is_error:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.05)
    assert reply.headers["x-lorikeet-attempts"] == "2"
    content = await logged(owner, logging, reply.headers["x-request-id"])
    assert [each["content"] for each in content["input"]] == [SHOWN]
    assert len(content["output"]) == 1


async def test_a_chat_is_logged_without_what_identifies_people(
    client: httpx.AsyncClient, owner: httpx.AsyncClient, logging: Key
) -> None:
    reply = await chat(client, logging, n=2)
    answers = [choice["message"]["content"] for choice in reply.json()["choices"]]
    assert "quick@fox.example" in answers[0], "the engine repeats what it is asked"
    content = await logged(owner, logging, reply.headers["x-request-id"])
    assert (content["endpoint"], content["model"]) == ("/v1/chat/completions", "tiny")
    assert content["input"] == [{"role": "user", "content": SHOWN, "tool_calls": []}]
    expected = [answer.replace("quick@fox.example", "[email]") for answer in answers]
    assert [(each["index"], each["content"]) for each in content["output"]] == list(enumerate(expected))
    assert {each["finish_reason"] for each in content["output"]} == {"length"}
    assert (content["input_truncated"], content["output_truncated"]) == (False, False)
    assert content["expires_at"] - content["created_at"] == 7 * 86_400


async def test_a_stream_is_logged_as_the_whole_reply_would_be(
    client: httpx.AsyncClient, owner: httpx.AsyncClient, logging: Key
) -> None:
    contents = []
    for stream in (False, True):
        reply = await chat(client, logging, stream=stream)
        contents.append(await logged(owner, logging, reply.headers["x-request-id"]))
    assert contents[0]["input"] == contents[1]["input"]
    assert contents[0]["output"] == contents[1]["output"]
    assert "[email]" in contents[1]["output"][0]["content"], "though it came in many pieces"


async def test_messages_are_logged_with_their_calls(
    client: httpx.AsyncClient, owner: httpx.AsyncClient, logging: Key
) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "mail", "arguments": '{"to":"a@b.example"}'}}
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sent to a@b.example"},
    ]
    reply = await chat(client, logging, messages=messages, max_tokens=1)
    content = await logged(owner, logging, reply.headers["x-request-id"])
    assert content["input"] == [
        {"role": "system", "content": "Be\nbrief.", "tool_calls": []},
        {"role": "assistant", "content": "", "tool_calls": [{"name": "mail", "arguments": '{"to":"[email]"}'}]},
        {"role": "tool", "content": "sent to [email]", "tool_calls": []},
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_completions_of_several_prompts_are_logged_in_the_replys_order(
    client: httpx.AsyncClient, owner: httpx.AsyncClient, logging: Key, stream: bool
) -> None:
    body = {"model": "tiny", "prompt": [TEXT, "another one"], "n": 2, "max_tokens": 5, "seed": 1}
    whole = await client.post("/v1/completions", json=body, headers=logging.headers)
    reply = await client.post("/v1/completions", json=body | {"stream": stream}, headers=logging.headers)
    content = await logged(owner, logging, reply.headers["x-request-id"])
    assert [each["content"] for each in content["input"]] == [SHOWN, "another one"]
    assert [each["content"] for each in content["output"]] == [each["text"] for each in whole.json()["choices"]]


async def test_prompts_of_token_ids_are_logged_as_redacted_text(
    client: httpx.AsyncClient, owner: httpx.AsyncClient, logging: Key
) -> None:
    made = await client.post("/tokenize", json={"model": "tiny", "prompt": TEXT}, headers=logging.headers)
    for route, field in (("completions", "prompt"), ("embeddings", "input")):
        body = {"model": "tiny", field: made.json()["tokens"]}
        reply = await client.post(f"/v1/{route}", json=body, headers=logging.headers)
        assert reply.status_code == 200, reply.text
        content = await logged(owner, logging, reply.headers["x-request-id"])
        assert [each["content"].strip() for each in content["input"]] == [SHOWN]


async def test_inputs_of_embeddings_are_logged(
    client: httpx.AsyncClient, owner: httpx.AsyncClient, logging: Key
) -> None:
    body = {"model": "tiny", "input": [TEXT, "two"]}
    reply = await client.post("/v1/embeddings", json=body, headers=logging.headers)
    content = await logged(owner, logging, reply.headers["x-request-id"])
    assert [(each["role"], each["content"]) for each in content["input"]] == [(None, SHOWN), (None, "two")]
    assert content["output"] == []


async def test_the_part_of_a_reply_that_a_leaving_client_got_is_logged(
    house: House, owner: httpx.AsyncClient, logging: Key
) -> None:
    """The logged reply has no finish reason, since the client left before the end."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": "on and on"}], "max_tokens": 400, "stream": True}
    sent = ""
    async with (
        httpx.AsyncClient(base_url=house.url, timeout=PATIENCE_S) as client,
        client.stream("POST", "/v1/chat/completions", json=body, headers=logging.headers) as reply,
    ):
        async for line in reply.aiter_lines():
            if line.startswith("data: {"):
                choices = json.loads(line.removeprefix("data: "))["choices"]
                sent += choices[0]["delta"].get("content") or ""
            if len(sent) > 20:
                break
    content = await logged(owner, logging, reply.headers["x-request-id"])
    (choice,) = content["output"]
    assert choice["finish_reason"] is None
    assert choice["content"].startswith(sent)


async def test_a_replay_is_not_logged_again(
    client: httpx.AsyncClient, owner: httpx.AsyncClient, logging: Key, tables: Database
) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "once"}], "max_tokens": 3}
    headers = logging.headers | {"idempotency-key": "one"}
    first, again = [await client.post("/v1/chat/completions", json=body, headers=headers) for _ in range(2)]
    assert first.content == again.content
    await logged(owner, logging, first.headers["x-request-id"])
    assert (await owner.get(path(logging, again.headers["x-request-id"]))).status_code == 404
    assert await count(tables, logging) == 1


async def test_without_the_setting_nothing_is_logged(
    client: httpx.AsyncClient, owner: httpx.AsyncClient, operator: httpx.AsyncClient, tenant: Key, tables: Database
) -> None:
    shown = (await operator.get(f"/projects/{tenant.project_id}")).json()
    assert shown["log_content_days"] == 0
    reply = await chat(client, tenant)
    in_ledger = await get_until_found(owner, f"/requests/{reply.headers['x-request-id']}")
    assert in_ledger.status_code == 200, "by now what is logged would have been written, too"
    assert (await owner.get(path(tenant, reply.headers["x-request-id"]))).status_code == 404
    assert await count(tables, tenant) == 0


async def test_logged_content_is_hidden_for_good_once_logging_is_turned_off(
    client: httpx.AsyncClient, owner: httpx.AsyncClient, logging: Key, tables: Database, cipher: Cipher
) -> None:
    request_id = (await chat(client, logging)).headers["x-request-id"]
    await logged(owner, logging, request_id)
    for days in (0, 7):
        changed = await owner.post(f"/projects/{logging.project_id}", json={"log_content_days": days})
        assert changed.status_code == 200
        assert (await owner.get(path(logging, request_id))).status_code == 404
    await Keeper(tables, cipher).work()
    assert await count(tables, logging) == 0


async def test_logged_content_is_deleted_after_its_days(
    client: httpx.AsyncClient, owner: httpx.AsyncClient, logging: Key, tables: Database, cipher: Cipher
) -> None:
    """Raising the days does not bring back content past its promised end; lowering them removes older content."""
    ids = [(await chat(client, logging)).headers["x-request-id"] for _ in range(3)]
    for each in ids:
        await logged(owner, logging, each)
    age = "UPDATE request_contents SET created_at = created_at - $2::interval, expires_at = expires_at - $2::interval "
    async with tables.acquire() as conn:
        for request_id, days in zip(ids, (8, 3, 0), strict=True):
            await conn.execute(age + "WHERE request_id = $1", request_id, datetime.timedelta(days))

    async def statuses() -> list[int]:
        return [(await owner.get(path(logging, each))).status_code for each in ids]

    assert await statuses() == [404, 200, 200]
    await owner.post(f"/projects/{logging.project_id}", json={"log_content_days": 30})
    assert await statuses() == [404, 200, 200]
    await owner.post(f"/projects/{logging.project_id}", json={"log_content_days": 2})
    assert await statuses() == [404, 404, 200]
    await Keeper(tables, cipher).work()
    assert await count(tables, logging) == 1


async def test_a_purge_deletes_logged_content(
    client: httpx.AsyncClient, owner: httpx.AsyncClient, operator: httpx.AsyncClient, logging: Key, tables: Database
) -> None:
    request_id = (await chat(client, logging)).headers["x-request-id"]
    await logged(owner, logging, request_id)
    await operator.post(f"/projects/{logging.project_id}/archive", json={"retention_days": 0})
    await Purger(tables).purge_all()
    assert await count(tables, logging) == 0
    assert (await owner.get(path(logging, request_id))).status_code == 404


async def test_logged_content_is_not_readable_in_the_database(
    client: httpx.AsyncClient, owner: httpx.AsyncClient, logging: Key, tables: Database
) -> None:
    secret = "jumps over the sleepy cat and tells nobody"
    request_id = (await chat(client, logging, messages=[{"role": "user", "content": secret}])).headers["x-request-id"]
    content = await logged(owner, logging, request_id)
    assert "sleepy cat" in content["input"][0]["content"] and "sleepy cat" in content["output"][0]["content"]
    held = await all_rows_as_text(tables)
    assert request_id in held
    for text in ("sleepy cat", "tells nobody"):
        assert text not in held
        assert text.encode().hex() not in held


async def test_a_row_that_was_moved_to_another_request_is_refused(
    client: httpx.AsyncClient, owner: httpx.AsyncClient, logging: Key, tables: Database
) -> None:
    ids = [(await chat(client, logging)).headers["x-request-id"] for _ in range(2)]
    for each in ids:
        await logged(owner, logging, each)
    async with tables.acquire() as conn:
        await conn.execute(
            "UPDATE request_contents SET sealed = (SELECT sealed FROM request_contents WHERE request_id = $2) "
            "WHERE request_id = $1",
            *ids,
        )
    assert (await owner.get(path(logging, ids[0]))).status_code == 503
    assert (await owner.get(path(logging, ids[1]))).status_code == 200


async def test_logged_content_is_read_by_few_roles_and_each_read_is_audited(
    house: House, client: httpx.AsyncClient, owner: httpx.AsyncClient, operator: httpx.AsyncClient, logging: Key
) -> None:
    request_id = (await chat(client, logging)).headers["x-request-id"]
    await logged(owner, logging, request_id)
    asked = path(logging, request_id)
    assert (await operator.get(asked)).status_code == 403, "no key may"
    with_own_key = await client.get(f"/v1/organization{asked}", headers=logging.headers)
    assert with_own_key.status_code == 403
    for role in ("admin", "viewer", "billing"):
        async with person(house, operator, role) as one:
            assert (await one.get(asked)).status_code == 403, role
    readers = [owner.headers["x-user-id"]]
    for role, status in (("owner", 200), ("admin", 200), ("viewer", 403), ("billing", 403)):
        async with person(house, operator, None) as member:
            assert (await member.get(asked)).status_code == 404, "whose project it is not"
            user = {"user_id": member.headers["x-user-id"], "role": role}
            added = await owner.post(f"/projects/{logging.project_id}/users", json=user)
            assert added.status_code == 200, added.text
            assert (await member.get(asked)).status_code == status, role
            readers += [user["user_id"]] if status == 200 else []
    log = (await owner.get("/audit_logs", params={"limit": 100})).json()["data"]
    reads = [row["actor"]["session"]["user"]["id"] for row in log if row["type"] == "request_content.read"]
    assert reads[: len(readers)] == readers[::-1]


async def test_another_projects_request_is_answered_exactly_like_one_that_does_not_exist(
    client: httpx.AsyncClient, owner: httpx.AsyncClient, logging: Key, stranger: Key
) -> None:
    request_id = (await chat(client, logging)).headers["x-request-id"]
    await logged(owner, logging, request_id)
    nobody = f"req_{'a' * (len(request_id) - 4)}"
    answers = []
    for tenant, asked in ((stranger, request_id), (stranger, nobody), (logging, nobody)):
        reply = await owner.get(path(tenant, asked))
        answers.append((reply.status_code, reply.content.replace(asked.encode(), b"ID")))
    assert answers == [answers[0]] * 3
    assert answers[0][0] == 404
