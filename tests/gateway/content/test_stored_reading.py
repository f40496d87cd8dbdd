"""Stored responses and conversations are read by people who may read a project's content, and each read is recorded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.gateway.conftest import House
from tests.gateway.content.test_request_log import login_of_owner as login_of_owner
from tests.gateway.limits.fleet import Key
from tests.patience import PATIENCE_S


@pytest.fixture
async def storing(operator: httpx.AsyncClient, tenant: Key) -> Key:
    await operator.post(f"/projects/{tenant.project_id}", json={"store_days": 30})
    return tenant


@pytest.fixture
async def owner(house: House, login_of_owner: dict[str, str]) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        base_url=f"{house.url}/v1/organization", headers=login_of_owner, timeout=PATIENCE_S
    ) as client:
        yield client


async def respond(client: httpx.AsyncClient, storing: Key, **fields: Any) -> httpx.Response:
    body = {"model": "tiny", "input": "hello there", "max_output_tokens": 6} | fields
    reply = await client.post("/v1/responses", json=body, headers=storing.headers)
    assert reply.status_code == 200, reply.text
    return reply


async def test_an_owner_reads_the_response_of_a_request_and_its_conversation(
    client: httpx.AsyncClient, owner: httpx.AsyncClient, storing: Key
) -> None:
    made = await client.post("/v1/conversations", json={}, headers=storing.headers)
    reply = await respond(client, storing, conversation=made.json()["id"])
    path = f"/projects/{storing.project_id}"
    found = (await owner.get(f"{path}/requests/{reply.headers['x-request-id']}/response")).json()
    response = reply.json()
    assert (found["id"], found["status"], found["model"]) == (response["id"], "incomplete", "tiny")
    assert found["input"][0]["content"] == [{"type": "input_text", "text": "hello there"}]
    assert found["output"] == response["output"]
    conversation = (await owner.get(f"{path}/stored_conversations/{found['conversation_id']}")).json()
    assert conversation["items"] == [*found["input"], *found["output"]]
    log = (await owner.get("/audit_logs", params={"limit": 10})).json()["data"]
    assert [row["type"] for row in log[:2]] == ["conversation.read", "stored_response.read"]


async def test_other_roles_do_not_read_stored_responses_and_a_missing_one_is_not_found(
    house: House, client: httpx.AsyncClient, owner: httpx.AsyncClient, operator: httpx.AsyncClient, storing: Key
) -> None:
    reply = await respond(client, storing)
    request_id = reply.headers["x-request-id"]
    path = f"/projects/{storing.project_id}/requests/{request_id}/response"
    assert (await operator.get(path)).status_code == 403, "no key may"
    assert (await client.get(f"/v1/organization{path}", headers=storing.headers)).status_code == 403
    unstored = (await respond(client, storing, store=False)).headers["x-request-id"]
    never = request_id[:-4] + "aaaa"
    replies = [await owner.get(path.replace(request_id, id)) for id in (unstored, never)]
    assert [each.status_code for each in replies] == [404, 404]
    assert replies[0].text.replace(unstored, never) == replies[1].text
    elsewhere = await owner.get(f"/projects/{house.globex.project_id}/requests/{request_id}/response")
    assert elsewhere.text.replace(request_id, never) == replies[1].text
    gone = await owner.get(f"/projects/{storing.project_id}/stored_conversations/conv_{'a' * 24}")
    assert gone.status_code == 404
    await client.delete(f"/v1/responses/{reply.json()['id']}", headers=storing.headers)
    assert (await owner.get(path)).status_code == 404
