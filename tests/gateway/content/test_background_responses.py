"""Responses that run in the background: queued before the reply, their events never renumbered, and always ended."""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import httpx
import pytest

from engine.fake import FakeCore
from engine.protocol import StepOutputs
from gateway.content.background_responses import MAX_OPEN
from gateway.openai.responses.background.runner import MAX_RUNNING_PER_PROJECT
from tests.gateway.conftest import House, open_house
from tests.gateway.content.conftest import another_key
from tests.gateway.limits.fleet import Key
from tests.gateway.openai.responses.laws import EVENT, check, read
from tests.gateway.routing.recording_engine import RecordingEngine
from tests.installation.databases import Databases
from tests.installation.waiting import until

FINAL = {"completed", "incomplete", "failed", "cancelled"}
NEVER = "resp_aaaaaaaaaaaaaaaaaaaaaaaa"


ENDLESS = 480
"""The most tokens of an answer that never ends by itself, however long a test takes: only an abort ends it."""

FAST, STEPS_OF_ONE = 40, 100
"""The tokens of an endless answer that come as fast as any, and the steps for each one after them.

Some have to follow, since events are logged when the next ones come.
"""


class EndlessCore(FakeCore):
    """A fake engine's core that never makes the last token of an endless answer."""

    _num_steps = 0

    def _step(self) -> StepOutputs:
        self._num_steps += 1
        waiting = {id: running for id, running in self._running.items() if self._waits(running)}
        for id in waiting:
            del self._running[id]
        outputs = super()._step()
        self._running |= waiting
        return outputs

    def _waits(self, running: Any) -> bool:
        if running.request.sampling.max_tokens != ENDLESS or (num_sent := running.num_sent[0]) < FAST:
            return False
        return num_sent == ENDLESS - 1 or self._num_steps % STEPS_OF_ONE != 0


@pytest.fixture(scope="module")
def house(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Give a house whose engine never ends an endless answer by itself."""
    make_engine = functools.partial(RecordingEngine, tokens_per_s=500, make_core=EndlessCore)
    folder = tmp_path_factory.mktemp("background")
    with open_house(databases.create("background"), folder, make_engine=make_engine) as house:
        yield house


@pytest.fixture
async def storing(operator: httpx.AsyncClient, tenant: Key) -> Key:
    changed = await operator.post(f"/projects/{tenant.project_id}", json={"store_days": 30})
    assert changed.json()["store_days"] == 30
    return tenant


@pytest.fixture
def http(client: httpx.AsyncClient, storing: Key) -> httpx.AsyncClient:
    client.headers.update(storing.headers)
    return client


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "input": "hello there", "max_output_tokens": 12, "background": True} | fields


async def queue(http: httpx.AsyncClient, **fields: Any) -> str:
    """Queue a response; return its id."""
    reply = await http.post("/v1/responses", json=body(**fields))
    assert reply.status_code == 200, reply.text
    assert (reply.json()["status"], reply.json()["output"], reply.json()["background"]) == ("queued", [], True)
    return str(reply.json()["id"])


async def get(http: httpx.AsyncClient, id: str) -> dict[str, Any]:
    reply = await http.get(f"/v1/responses/{id}")
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


async def ended(http: httpx.AsyncClient, id: str) -> dict[str, Any]:
    """Wait until a response has ended, and return it."""

    async def is_over() -> bool:
        return (await get(http, id))["status"] in FINAL

    await until(is_over, f"{id} did not end", pause_s=0.05)
    return await get(http, id)


async def stream(http: httpx.AsyncClient, id: str, after: int | None = None) -> str:
    params = {"stream": "true"} | ({} if after is None else {"starting_after": str(after)})
    reply = await http.get(f"/v1/responses/{id}", params=params)
    assert reply.status_code == 200, reply.text
    return reply.text


async def wait_for_text(http: httpx.AsyncClient, id: str, conn: asyncpg.Connection[Any]) -> int:
    """Wait until a response has text, and return the number of its stored events."""

    async def has_spoken() -> bool:
        return int(await conn.fetchval("SELECT num_events FROM background_responses WHERE id = $1", id)) > 6

    await until(has_spoken, "nothing was said", pause_s=0.02)
    return int(await conn.fetchval("SELECT num_events FROM background_responses WHERE id = $1", id))


async def test_a_response_is_queued_and_ends_as_one_that_was_waited_for(http: httpx.AsyncClient) -> None:
    asked = {"seed": 7, "instructions": "Be brief.", "metadata": {"a": "b"}}
    waited = (await http.post("/v1/responses", json=body(background=False, **asked))).json()
    waited = (await http.post("/v1/responses", json=body(background=False, **asked))).json()
    response = await ended(http, await queue(http, **asked))
    same = ("status", "usage", "instructions", "metadata", "temperature", "store", "incomplete_details")
    assert {name: response[name] for name in same} == {name: waited[name] for name in same}
    assert response["output"][0]["content"] == waited["output"][0]["content"]
    followed = await http.post("/v1/responses", json=body(background=False, previous_response_id=response["id"]))
    assert followed.status_code == 200
    items = (await http.get(f"/v1/responses/{response['id']}/input_items")).json()
    assert items["data"][0]["content"][0]["text"] == "hello there"


async def test_an_events_number_never_changes(http: httpx.AsyncClient) -> None:
    reply = await http.post("/v1/responses", json=body(stream=True, max_output_tokens=30))
    live, id = reply.text, read(reply.text)[0]["response"]["id"]
    events = read(live)
    response = check(events)
    assert response == await get(http, id)
    parts = live.split("\n\n")
    assert await stream(http, id) == live
    for number in range(len(events)):
        assert await stream(http, id, number) == "\n\n".join(parts[number + 1 :])
    assert await stream(http, id, 10_000) == "data: [DONE]\n\n"
    wrong = await http.get(f"/v1/responses/{id}", params={"stream": "true", "starting_after": "-1"})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "starting_after")


async def test_a_cancelled_response_stops_and_keeps_its_text_so_far(
    house: House, http: httpx.AsyncClient, storing: Key
) -> None:
    conn = await asyncpg.connect(house.dsn)
    id = await queue(http, max_output_tokens=ENDLESS)
    await wait_for_text(http, id, conn)
    began_s = time.monotonic()
    reply = (await http.post(f"/v1/responses/{id}/cancel")).json()
    assert (reply["status"], reply["error"]) == ("cancelled", None) and time.monotonic() - began_s < 5
    response = check(read(await stream(http, id)))
    assert response == reply == await get(http, id)
    assert 0 < response["usage"]["output_tokens"] < ENDLESS and response["output"][0]["content"][0]["text"]
    (billed,) = await conn.fetch(
        "SELECT prompt_tokens, cached_tokens, completion_tokens FROM usage_attempts WHERE project_id = $1",
        storing.project_id,
    )
    usage = response["usage"]
    cached = usage["input_tokens_details"]["cached_tokens"]
    assert tuple(billed) == (usage["input_tokens"], cached, usage["output_tokens"])
    assert (await http.post(f"/v1/responses/{id}/cancel")).json() == reply
    followed = await http.post("/v1/responses", json=body(background=False, previous_response_id=id))
    assert followed.status_code == 200
    await conn.close()


@pytest.fixture
async def places_taken(house: House, http: httpx.AsyncClient) -> AsyncIterator[list[str]]:
    """Give the ids of running responses that take all places of their project."""
    conn = await asyncpg.connect(house.dsn)
    long = [await queue(http, max_output_tokens=ENDLESS) for _ in range(MAX_RUNNING_PER_PROJECT)]
    for id in long:
        await wait_for_text(http, id, conn)
    await conn.close()
    yield long
    await asyncio.gather(*(http.post(f"/v1/responses/{id}/cancel") for id in long))


async def listed_input(http: httpx.AsyncClient, id: str) -> list[tuple[str, str]]:
    """Return the id and the text of each input item of a response."""
    reply = await http.get(f"/v1/responses/{id}/input_items", params={"order": "asc"})
    assert reply.status_code == 200, reply.text
    return [(item["id"], item["content"][0]["text"]) for item in reply.json()["data"]]


async def test_a_response_cancelled_in_the_queue_never_runs_and_another_may_follow_it(
    http: httpx.AsyncClient, places_taken: list[str]
) -> None:
    id = await queue(http)
    assert (await http.post(f"/v1/responses/{id}/cancel")).json()["status"] == "cancelled"
    response = await ended(http, id)
    events = read(await stream(http, id))
    assert check(events) == response
    assert [event["type"] for event in events] == ["response.created", "response.queued", "response.failed"]
    assert (response["usage"]["total_tokens"], response["store"]) == (0, True)
    assert await listed_input(http, id) == [(f"msg_{id.removeprefix('resp_')}_0", "hello there")]
    after = body(background=False, previous_response_id=id, max_output_tokens=80, input="and then?")
    reply = await http.post("/v1/responses", json=after)
    assert "hello there" in reply.json()["output"][0]["content"][0]["text"], reply.text


async def test_the_input_is_listed_while_a_response_waits_and_runs_and_after_it_failed(
    house: House, http: httpx.AsyncClient, places_taken: list[str]
) -> None:
    first = (await http.post("/v1/responses", json=body(background=False, input="the first"))).json()["id"]
    ((referred, _),) = await listed_input(http, first)
    given = [{"type": "item_reference", "id": referred}, {"role": "user", "content": "the second"}]
    waiting, running = await queue(http, input=given), places_taken[0]
    part = waiting.removeprefix("resp_")
    assert await listed_input(http, waiting) == [(f"msg_{part}_0", "the first"), (f"msg_{part}_1", "the second")]
    before = await listed_input(http, running)
    assert [text for _, text in before] == ["hello there"]
    followed = await http.post("/v1/responses", json=body(background=False, previous_response_id=running))
    assert (followed.status_code, followed.json()["error"]["code"]) == (400, "previous_response_not_found")
    conn = await asyncpg.connect(house.dsn)
    await conn.execute(
        "UPDATE background_responses SET owner = 'dead', fence = fence + 1, lease_until = now() WHERE id = $1", running
    )
    await conn.close()
    assert (await ended(http, running))["status"] == "failed"
    assert await listed_input(http, running) == before


async def test_a_failure_gives_the_reason_that_the_same_request_is_refused_for(http: httpx.AsyncClient) -> None:
    asked = {"max_output_tokens": 1_000_000}
    refused = (await http.post("/v1/responses", json=body(background=False, **asked))).json()["error"]
    id = await queue(http, **asked)
    response = await ended(http, id)
    assert response["error"] == {"code": "invalid_prompt", "message": f"{refused['message']} ({refused['code']})"}
    assert refused["code"] and [text for _, text in await listed_input(http, id)] == ["hello there"]


async def test_a_stream_whose_response_is_deleted_ends_as_a_failure(http: httpx.AsyncClient) -> None:
    id, text, is_deleted = await queue(http, max_output_tokens=ENDLESS), "", False
    async with http.stream("GET", f"/v1/responses/{id}", params={"stream": "true"}) as reply:
        async for part in reply.aiter_text():
            text += part
            if "output_text.delta" in text and not is_deleted:
                is_deleted = (await http.delete(f"/v1/responses/{id}")).json()["deleted"]
    events = read("".join(f"{part}\n\n" for part in text.split("\n\n")[:-1] if not part.startswith(":")))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    error, failed = events[-2:]
    assert (error["type"], failed["type"]) == ("error", "response.failed")
    assert error["error"]["message"] == error["message"] and "not found" in error["message"]
    response = failed["response"]
    assert (response["id"], response["status"], response["output"]) == (id, "failed", [])
    EVENT.validate_python(error)
    EVENT.validate_python(failed)


async def test_a_response_whose_gateway_is_gone_ends_as_failed_under_the_numbers_that_follow(
    house: House, http: httpx.AsyncClient
) -> None:
    conn = await asyncpg.connect(house.dsn)
    id = await queue(http, max_output_tokens=ENDLESS)
    await wait_for_text(http, id, conn)
    await conn.execute(
        "UPDATE background_responses SET owner = 'run_dead', fence = fence + 1, lease_until = now() WHERE id = $1", id
    )
    before = read(await stream(http, id))
    response = check(before)
    assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
    assert response["output"][0]["content"][0]["text"]
    assert response == await get(http, id)
    assert (await conn.fetchval("SELECT fence FROM background_responses WHERE id = $1", id)) == 3
    await conn.close()


async def test_a_response_without_text_is_run_anew_and_no_project_takes_all_places(
    house: House, http: httpx.AsyncClient
) -> None:
    conn = await asyncpg.connect(house.dsn)
    long = [await queue(http, max_output_tokens=ENDLESS) for _ in range(MAX_RUNNING_PER_PROJECT)]
    for id in long:
        await wait_for_text(http, id, conn)
    waiting = await queue(http)
    await conn.execute(
        "UPDATE background_responses SET owner = 'run_dead', fence = 1, status = 'in_progress', lease_until = now() "
        "WHERE id = $1 AND fence = 0",
        waiting,
    )
    assert (await get(http, waiting))["status"] == "in_progress"
    assert await conn.fetchval("SELECT fence FROM background_responses WHERE id = $1", waiting) == 1
    replies = await asyncio.gather(*(http.post(f"/v1/responses/{id}/cancel") for id in long))
    assert [reply.json()["status"] for reply in replies] == ["cancelled"] * len(long)
    assert (await ended(http, waiting))["status"] == "incomplete"
    check(read(await stream(http, waiting)))
    await conn.close()


async def test_a_revoked_key_runs_nothing_more(house: House, http: httpx.AsyncClient, storing: Key) -> None:
    conn = await asyncpg.connect(house.dsn)
    long = [await queue(http, max_output_tokens=ENDLESS) for _ in range(MAX_RUNNING_PER_PROJECT)]
    for id in long:
        await wait_for_text(http, id, conn)
    other = await another_key(house.dsn, storing, models=["tiny"])
    waiting = (await http.post("/v1/responses", json=body(), headers=other.headers)).json()["id"]
    await conn.execute("UPDATE api_keys SET revoked_at = now() WHERE id = $1", await _key_id(conn, waiting))
    for id in long:
        await http.post(f"/v1/responses/{id}/cancel")
    response = await ended(http, waiting)
    assert response["status"] == "failed" and "not valid any more" in response["error"]["message"]
    await conn.close()


async def _key_id(conn: asyncpg.Connection[Any], id: str) -> str:
    return str(await conn.fetchval("SELECT api_key_id FROM background_responses WHERE id = $1", id))


async def test_too_many_unfinished_responses_are_refused(house: House, http: httpx.AsyncClient, storing: Key) -> None:
    conn = await asyncpg.connect(house.dsn)
    await conn.execute(
        "INSERT INTO background_responses (project_id, id, model, api_key_id, status, owner, lease_until, num_events, "
        "content_key, sealed_request, sealed_response) SELECT $1, 'resp_' || n, 'tiny', '', 'in_progress', 'run_x', "
        "now() + interval '1 minute', 0, '', '', '' FROM generate_series(1, $2::integer) n",
        storing.project_id,
        MAX_OPEN,
    )
    reply = await http.post("/v1/responses", json=body())
    assert (reply.status_code, reply.json()["error"]["code"]) == (429, "too_many_background_responses")
    await conn.execute("DELETE FROM background_responses WHERE project_id = $1", storing.project_id)
    await conn.close()


async def test_a_response_that_may_not_be_stored_cannot_run_in_the_background(
    client: httpx.AsyncClient, tenant: Key
) -> None:
    for fields, param in (({}, "background"), ({"store": False}, "background")):
        reply = await client.post("/v1/responses", json=body(**fields), headers=tenant.headers)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


async def test_another_projects_response_is_answered_exactly_like_one_that_does_not_exist(
    http: httpx.AsyncClient, stranger: Key
) -> None:
    id = await queue(http)
    await ended(http, id)
    for method, path in (
        ("GET", "/v1/responses/{}"),
        ("GET", "/v1/responses/{}?stream=true"),
        ("POST", "/v1/responses/{}/cancel"),
        ("DELETE", "/v1/responses/{}"),
    ):
        foreign = await http.request(method, path.format(id), headers=stranger.headers)
        nothing = await http.request(method, path.format(NEVER), headers=stranger.headers)
        assert foreign.status_code == nothing.status_code == 404
        assert foreign.text.replace(id, NEVER) == nothing.text
    assert (await get(http, id))["id"] == id
    assert (await http.delete(f"/v1/responses/{id}")).json()["deleted"]
    for path in ("", "?stream=true"):
        assert (await http.get(f"/v1/responses/{id}{path}")).status_code == 404


async def test_deleting_a_response_ends_its_run(house: House, http: httpx.AsyncClient) -> None:
    conn = await asyncpg.connect(house.dsn)
    id = await queue(http, max_output_tokens=ENDLESS)
    await wait_for_text(http, id, conn)
    assert (await http.delete(f"/v1/responses/{id}")).json()["deleted"]
    await asyncio.sleep(0)
    assert await conn.fetchval("SELECT count(*) FROM background_events WHERE response_id = $1", id) == 0
    assert (await http.get(f"/v1/responses/{id}")).status_code == 404
    await conn.close()


async def test_only_a_background_response_is_cancelled_or_streamed_again(http: httpx.AsyncClient) -> None:
    id = (await http.post("/v1/responses", json=body(background=False))).json()["id"]
    reply = await http.post(f"/v1/responses/{id}/cancel")
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "not_in_background")
    reply = await http.get(f"/v1/responses/{id}?stream=true")
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "stream")


async def test_webhooks_are_told_of_the_ends_that_they_ask_for(
    house: House, http: httpx.AsyncClient, operator: httpx.AsyncClient, storing: Key
) -> None:
    asked, other = [
        (await operator.post("/webhooks", json={"url": "https://example.com/hook", "events": events})).json()
        for events in (["response.incomplete", "response.cancelled"], ["response.completed"])
    ]
    conn = await asyncpg.connect(house.dsn)
    try:
        id = await queue(http)
        assert (await ended(http, id))["status"] == "incomplete"
        rows = await conn.fetch("SELECT webhook_id, body FROM webhook_deliveries WHERE body LIKE $1", f"%{id}%")
        ((webhook_id, text),) = rows
        event = json.loads(text)
        assert (webhook_id, event["type"], event["object"]) == (asked["id"], "response.incomplete", "event")
        assert event["data"] == {"id": id, "project_id": storing.project_id} and event["id"].startswith("evt_")
    finally:
        for made in (asked, other):
            await operator.delete(f"/webhooks/{made['id']}")
        await conn.close()


async def test_a_response_that_cannot_be_read_any_more_ends_as_failed(house: House, http: httpx.AsyncClient) -> None:
    conn = await asyncpg.connect(house.dsn)
    long = [await queue(http, max_output_tokens=ENDLESS) for _ in range(MAX_RUNNING_PER_PROJECT)]
    for id in long:
        await wait_for_text(http, id, conn)
    waiting = await queue(http)
    await conn.execute("UPDATE background_responses SET sealed_request = sealed_response WHERE id = $1", waiting)
    for id in long:
        await http.post(f"/v1/responses/{id}/cancel")
    assert (await ended(http, waiting))["status"] == "failed"
    assert (await ended(http, await queue(http)))["status"] == "incomplete", "and others go on"
    await conn.close()


async def test_a_lease_that_nobody_holds_any_more_ends(house: House, http: httpx.AsyncClient) -> None:
    """The gateway that holds the response's lease lives, but does not run the response any more."""
    conn = await asyncpg.connect(house.dsn)
    id = await queue(http, max_output_tokens=ENDLESS)
    await wait_for_text(http, id, conn)
    lease = (
        "SELECT fence, lease_until < now() + interval '10 seconds' AS is_short FROM background_responses WHERE id = $1"
    )
    before = await conn.fetchrow(lease, id)
    await conn.execute(
        "UPDATE background_responses SET fence = fence + 1, lease_until = now() + interval '1 second' WHERE id = $1", id
    )
    assert (await ended(http, id))["status"] == "failed"
    after = await conn.fetchrow(lease, id)
    assert before is not None and after is not None and after["fence"] == before["fence"] + 2
    await conn.close()
