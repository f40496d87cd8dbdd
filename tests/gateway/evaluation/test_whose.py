"""An id of another project's request or vote is answered exactly like an invented id, and as fast; keys need a
scope."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

import asyncpg
import httpx
import pytest

from gateway.db.ids import new_id
from gateway.db.organization.keys import create_key
from gateway.domain.tenancy.keys import new_key
from gateway.domain.tenancy.principal import Scope
from tests.gateway.evaluation.conftest import Site

NUM_TIMED = 60


async def ids_of_nobody(other: Site) -> list[str]:
    """Return ids that the project has no request for: another project's, made-up ones, and texts that are no ids."""
    foreign = await other.request()
    made_up = new_id("req")
    return [
        *(foreign, foreign.replace("req_", "chatcmpl-"), foreign.replace("req_", "resp_"), f"{foreign}aaaaaaaa"),
        *(made_up, made_up.replace("req_", "chatcmpl-"), made_up.replace("req_", "resp_"), f"{made_up}aaaaaaaa"),
        *("req_", "x", "chatcmpl-", "-", "é" * 40, "a\\0b", "req_" + "a" * 120),
    ]


async def test_foreign_made_up_and_malformed_ids_are_one_answer(site: Site, other: Site) -> None:
    for field in ("request_id", "completion_id"):
        answers = set()
        for text in await ids_of_nobody(other):
            body = {"metric": "thumbs_up", "value": True, field: text}
            reply = await site.client.post("/v1/feedback", json=body)
            answers.add((reply.status_code, reply.content))
        assert len(answers) == 1
        assert answers.pop()[0] == 404
    assert await site.counted() == await other.counted() == []


async def test_another_projects_feedback_is_answered_like_one_that_does_not_exist(site: Site, other: Site) -> None:
    made = await other.vote(request_id=await other.request())
    for method in ("GET", "DELETE"):
        answers = set()
        for text in (made["id"], new_id("fb"), "x", "%00"):
            reply = await site.client.request(method, f"/v1/feedback/{text}")
            answers.add((reply.status_code, reply.content))
        assert len(answers) == 1
        assert answers.pop()[0] == 404
    assert (await site.client.get("/v1/feedback", params={"after": made["id"]})).json()["data"] == []
    assert len(await other.counted()) == 1


async def test_times_tell_no_foreign_id_from_a_made_up_one(site: Site, other: Site) -> None:
    foreign = [await other.request() for _ in range(NUM_TIMED)]
    took: tuple[list[float], list[float]] = ([], [])
    for text in foreign:
        for kind, request_id in enumerate((text, new_id("req"))):
            start = time.perf_counter()
            body = {"metric": "thumbs_up", "value": True, "request_id": request_id}
            reply = await site.client.post("/v1/feedback", json=body)
            took[kind].append(time.perf_counter() - start)
            assert reply.status_code == 404
    first, second = (statistics.median(each) for each in took)
    assert 0.5 < first / second < 2


async def with_scope(site: Site, *scopes: Scope) -> dict[str, str]:
    """Make a key of the project with these scopes; return its header."""
    made = new_key()
    conn = await asyncpg.connect(site.house.dsn)
    try:
        await create_key(
            conn,
            organization_id=site.key.organization_id,
            project_id=site.key.project_id,
            name="scoped",
            public=made.public,
            sha256=made.sha256,
            scopes=scopes,
        )
    finally:
        await conn.close()
    return {"authorization": f"Bearer {made.secret}"}


async def test_a_key_for_feedback_posts_feedback_and_nothing_else(site: Site) -> None:
    body: dict[str, Any] = {"request_id": await site.request(), "metric": "thumbs_up", "value": True}
    headers = await with_scope(site, "feedback")
    posted = await site.client.post("/v1/feedback", json=body, headers=headers)
    assert posted.status_code == 200
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    for method, path, sent in [
        ("GET", "/v1/feedback", None),
        ("GET", f"/v1/feedback/{posted.json()['id']}", None),
        ("DELETE", f"/v1/feedback/{posted.json()['id']}", None),
        ("GET", "/v1/models", None),
        ("POST", "/v1/chat/completions", chat),
        ("POST", "/tokenize", {"model": "tiny", "prompt": "x"}),
        ("GET", f"/v1/organization/projects/{site.key.project_id}/adapters", None),
        ("GET", "/v1/organization/usage/completions?start_time=1", None),
    ]:
        reply = await site.client.request(method, path, json=sent, headers=headers)
        assert reply.status_code == 403, f"{method} {path}: {reply.text}"
    assert len(await site.counted()) == 1


@pytest.mark.parametrize("scope", ["adapters", "usage"])
async def test_keys_with_other_scopes_post_no_feedback(site: Site, scope: Scope) -> None:
    body = {"request_id": await site.request(), "metric": "thumbs_up", "value": True}
    reply = await site.client.post("/v1/feedback", json=body, headers=await with_scope(site, scope))
    assert reply.status_code == 403


async def test_votes_have_a_pace_of_their_project(site: Site, other: Site) -> None:
    request_id = await site.request()
    votes = [{"request_id": request_id, "metric": "thumbs_up", "value": True}] * 1000

    async def post(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post("/v1/feedback", json={"data": votes})

    replies = await asyncio.gather(*(post(site.client) for _ in range(40)))  # faster than one by one
    replies.append(await post(site.client))  # after all of these were counted
    refused = [reply for reply in replies if reply.status_code == 429]
    assert refused
    assert int(refused[0].headers["retry-after"]) >= 1
    assert (await other.vote(request_id=await other.request()))["replaced"] is False
