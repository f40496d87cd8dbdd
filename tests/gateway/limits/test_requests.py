"""A tenant at its limits gets refusals that explain themselves, headers, clamped completions, and exact books.

One gateway; its engine makes 100 steps a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import asyncpg
import httpx
import pytest

from gateway.db.billing.credits import grant_credit, set_prepaid
from gateway.db.pool import Database
from gateway.domain.limits.limit import Limit, Unit, Window
from tests.gateway.bases import put_adapter
from tests.gateway.limits.fleet import (
    INPUT_NANOS,
    OUTPUT_NANOS,
    Fleet,
    Key,
    completion,
    make_key,
    put_limit,
    running_fleet,
)
from tests.installation.waiting import until
from tests.patience import PATIENCE_S

PROMPT = [5, 6, 7, 8]
STEPS_PER_S, STREAM_TOKENS = 100, 500


@pytest.fixture(scope="module")
def fleet(module_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    flags = ("--tokens-per-s", str(STEPS_PER_S), "--max-num-seqs", "8", "--max-waiting", "8")
    with running_fleet(module_dsn, tmp_path_factory.mktemp("requests"), num_gateways=1, engine_flags=flags) as fleet:
        yield fleet


@pytest.fixture
async def client(fleet: Fleet) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"{fleet.urls[0]}/v1", timeout=PATIENCE_S) as client:
        yield client


@pytest.fixture
async def key(fleet: Fleet, request: pytest.FixtureRequest) -> Key:
    # A project's name has 64 characters at most, and the cases of a test differ at the end of their names.
    return await make_key(fleet.dsn, request.node.name[-60:])


async def ask(
    client: httpx.AsyncClient, key: Key, max_tokens: int | None = 4, path: str = "/completions", **fields: object
) -> httpx.Response:
    body = completion(PROMPT, max_tokens or 1, **fields)
    if max_tokens is None:
        del body["max_tokens"]
    return await client.post(path, json=body, headers=key.headers)


async def limit_row(fleet: Fleet, limit_id: str) -> tuple[int, int]:
    """Return the settled and the leased amount of a limit in the database, whatever the window."""
    conn = await asyncpg.connect(fleet.dsn)
    try:
        settled = await conn.fetchval("SELECT sum(settled)::bigint FROM limit_accounts WHERE limit_id = $1", limit_id)
        leased = await conn.fetchval("SELECT sum(amount)::bigint FROM limit_leases WHERE limit_id = $1", limit_id)
        return settled or 0, leased or 0
    finally:
        await conn.close()


async def until_books_are(fleet: Fleet, limit_id: str, settled: int, leased: int = 0) -> None:
    found: tuple[int, int] | None = None

    async def are_so() -> bool:
        nonlocal found
        found = await limit_row(fleet, limit_id)
        return found == (settled, leased)

    await until(are_so, lambda: f"(settled, leased) are {found}, not {(settled, leased)}")


async def test_a_refusal_explains_itself(client: httpx.AsyncClient, fleet: Fleet, key: Key) -> None:
    limit_id = await put_limit(fleet.dsn, key.limit("tokens", "day", 10))
    assert (await ask(client, key)).status_code == 200
    await until_books_are(fleet, limit_id, 8)
    refused = await ask(client, key)
    assert refused.status_code == 429
    error = refused.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("insufficient_quota", "insufficient_quota", None)
    assert "The limit of this project is 10 tokens per day: 8 used, 0 reserved" in error["message"]
    frees_at = error["limit"].pop("frees_at")
    assert frees_at % 86_400 == 0
    assert error["limit"] == {
        "id": limit_id,
        "scope": "project",
        "model": None,
        "unit": "tokens",
        "window": "day",
        "max": 10,
        "used": 8,
        "reserved": 0,
        "needed": 5,
    }
    assert refused.headers["x-should-retry"] == "false"
    assert 0 < int(refused.headers["retry-after"]) <= 86_400
    assert refused.headers["x-ratelimit-remaining-tokens"] == "2"


async def test_headers_count_down_on_every_answer(client: httpx.AsyncClient, fleet: Fleet, key: Key) -> None:
    await put_limit(fleet.dsn, key.limit("requests", "minute", 3))
    await put_limit(fleet.dsn, key.limit("tokens", "day", 1000))
    seen = []
    for stream in (False, True, False, False):
        reply = await ask(client, key, stream=stream)
        seen.append((reply.status_code, reply.headers["x-ratelimit-remaining-requests"]))
        assert reply.headers["x-ratelimit-limit-requests"] == "3"
        assert reply.headers["x-ratelimit-limit-tokens"] == "1000"
        assert reply.headers["x-ratelimit-reset-requests"].endswith("s")
    if seen[-1][0] == 200:
        return  # a minute ended meanwhile
    assert seen == [(200, "2"), (200, "1"), (200, "0"), (429, "0")]
    assert reply.json()["error"]["code"] == "rate_limit_exceeded"
    assert 0 < int(reply.headers["retry-after"]) <= 60
    assert "x-should-retry" not in reply.headers


async def test_without_limits_there_are_no_headers(client: httpx.AsyncClient, key: Key) -> None:
    reply = await ask(client, key)
    assert not [name for name in reply.headers if name.startswith("x-ratelimit")]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_completion_ends_at_its_reserved_bound(
    client: httpx.AsyncClient, fleet: Fleet, key: Key, stream: bool
) -> None:
    limit_id = await put_limit(fleet.dsn, key.limit("tokens", "month", 10))
    reply = await ask(client, key, 50, stream=stream)
    assert reply.status_code == 200
    assert '"finish_reason":"length"' in reply.text
    await until_books_are(fleet, limit_id, 10)


async def test_every_choice_and_prompt_counts(client: httpx.AsyncClient, fleet: Fleet, key: Key) -> None:
    tokens = await put_limit(fleet.dsn, key.limit("tokens", "day", 200))
    requests = await put_limit(fleet.dsn, key.limit("requests", "day", 15))
    body = completion([], 5, n=2) | {"prompt": [PROMPT, PROMPT, PROMPT]}
    assert (await client.post("/completions", json=body, headers=key.headers)).status_code == 200
    await until_books_are(fleet, tokens, 3 * (4 + 2 * 5))
    await until_books_are(fleet, requests, 1)
    embedded = await client.post("/embeddings", json={"model": "tiny", "input": [[1, 2], [3]]}, headers=key.headers)
    assert embedded.status_code == 200
    await until_books_are(fleet, tokens, 42 + 3)
    await until_books_are(fleet, requests, 2)


async def test_a_client_that_leaves_settles_what_was_made(client: httpx.AsyncClient, fleet: Fleet, key: Key) -> None:
    limit_id = await put_limit(fleet.dsn, key.limit("output_tokens", "day", 400))
    body = completion(PROMPT, 400, stream=True)
    with contextlib.suppress(httpx.ReadError):
        async with client.stream("POST", "/completions", json=body, headers=key.headers) as reply:
            async for _ in reply.aiter_lines():
                break

    async def settled() -> int:
        settled, leased = await limit_row(fleet, limit_id)
        return 0 if leased else settled

    assert 0 < await until(settled) < 400


async def test_the_reservation_of_a_request_that_its_engine_refuses_is_given_back(
    client: httpx.AsyncClient, fleet: Fleet, key: Key
) -> None:
    """An engine refuses the admitted request, which counts as a request and leaves nothing reserved behind."""
    limit_id = await put_limit(fleet.dsn, key.limit("requests", "day", 2))
    wrong = await ask(client, key, structured_outputs={"regex": "unsupported"})
    assert wrong.status_code == 400
    await until_books_are(fleet, limit_id, 1, 0)
    assert (await ask(client, key, 100_000)).status_code == 400
    assert [(await ask(client, key)).status_code for _ in range(2)] == [200, 429]
    await until_books_are(fleet, limit_id, 2, 0)


async def test_concurrent_requests_are_bounded_and_their_places_return(
    client: httpx.AsyncClient, fleet: Fleet, key: Key
) -> None:
    """All seven streams overlap, so that one accepted stream too many exceeds the limit.

    If the machine takes longer than a stream lasts, the streams do not overlap and the requests are sent again.
    """
    limit_id = await put_limit(fleet.dsn, key.limit("concurrency", "none", 3))
    body, is_decided = completion(PROMPT, STREAM_TOKENS, stream=True), False
    gives_up_s = time.monotonic() + PATIENCE_S
    while not is_decided:
        began_s = time.monotonic()
        assert began_s < gives_up_s, "seven requests never had their heads while the first one ran"
        async with contextlib.AsyncExitStack() as streams:
            opened = (client.stream("POST", "/completions", json=body, headers=key.headers) for _ in range(7))
            replies = await asyncio.gather(*(streams.enter_async_context(each) for each in opened))
            is_decided = time.monotonic() - began_s < STREAM_TOKENS / STEPS_PER_S
            refused = [await each.aread() for each in replies if each.status_code == 429]
        await until_books_are(fleet, limit_id, 0)
    assert sorted(reply.status_code for reply in replies) == [200] * 3 + [429] * 4
    for each in refused:
        error = json.loads(each)["error"]
        assert "is 3 requests at a time, and 3 are running" in error["message"]
        assert error["code"] == "rate_limit_exceeded"
    for _ in range(5):
        assert (await ask(client, key, 1)).status_code == 200


async def test_one_tenant_cannot_fill_the_engines_queue(client: httpx.AsyncClient, fleet: Fleet, key: Key) -> None:
    """The engine takes 16 completions at once; one tenant may have half of them."""
    other = await make_key(fleet.dsn, "bystander")
    for max_tokens in (40, 150, 500):  # longer where a machine is too busy to ask for all while the first ones run
        crowd = [asyncio.create_task(ask(client, key, max_tokens)) for _ in range(14)]
        while sum(task.done() for task in crowd) < 6:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert (await ask(client, other, 1)).status_code == 200
        statuses = Counter([(await task).status_code for task in crowd])
        if statuses[429] == 6:
            break
    assert statuses == {200: 8, 429: 6}


@pytest.mark.parametrize(
    ("unit", "most", "max_tokens", "status", "param"),
    [
        ("input_tokens", 3, 1, 400, "prompt"),
        ("input_tokens", 4, 1, 200, None),
        ("output_tokens", 5, 6, 400, "max_tokens"),
        ("output_tokens", 5, 5, 200, None),
        ("tokens", 9, 6, 400, "max_tokens"),
        ("tokens", 9, None, 200, None),
    ],
)
async def test_a_request_larger_than_its_limit_is_refused_by_its_field(
    client: httpx.AsyncClient,
    fleet: Fleet,
    unit: Unit,
    most: int,
    max_tokens: int | None,
    status: int,
    param: str | None,
    key: Key,
) -> None:
    await put_limit(fleet.dsn, key.limit(unit, "none", most))
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": max_tokens}
    if max_tokens is None:  # a chat has no small default
        body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 5}
    reply = await client.post("/completions", json=body, headers=key.headers)
    assert reply.status_code == status, reply.text
    if param is not None:
        assert reply.json()["error"]["param"] == param


async def test_a_chat_without_a_bound_is_cut_at_the_tenants(client: httpx.AsyncClient, fleet: Fleet, key: Key) -> None:
    await put_limit(fleet.dsn, key.limit("output_tokens", "none", 7))
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello there"}], "ignore_eos": True}
    reply = await client.post("/chat/completions", json=body, headers=key.headers)
    assert reply.json()["usage"]["completion_tokens"] == 7
    assert reply.json()["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("about", ["the key", "the model", "the organization"])
async def test_a_limit_refuses_only_requests_of_the_key_model_or_organization_that_it_names(
    client: httpx.AsyncClient, fleet: Fleet, key: Key, about: str
) -> None:
    other = await make_key(fleet.dsn, f"other of {about}")
    names: dict[str, dict[str, str | None]] = {
        "the key": {"project_id": key.project_id, "api_key_id": key.id},
        "the model": {"project_id": key.project_id, "model": "tiny"},
        "the organization": {"project_id": None, "model": "tiny"},
    }
    window: Window = "day"
    limit = Limit("", key.organization_id, None, None, None, "requests", window, 0, True)
    made = Limit(**({field: getattr(limit, field) for field in limit.__struct_fields__} | names[about]))  # type: ignore[arg-type]
    limit_id = await put_limit(fleet.dsn, made)
    try:

        async def refused() -> tuple[httpx.Response, int] | None:
            mine, others = await ask(client, key, 1), await ask(client, other, 1)
            return (mine, others.status_code) if mine.status_code == 429 else None

        mine, others = await until(refused)
        assert others == {"the key": 200, "the model": 200, "the organization": 429}[about]
        hidden = (mine.json()["error"]["limit"]["used"] is None, "x-ratelimit-remaining-requests" not in mine.headers)
        assert hidden == ((about == "the organization",) * 2)
    finally:
        conn = await asyncpg.connect(fleet.dsn)
        await conn.execute("DELETE FROM limits WHERE id = $1", limit_id)
        await conn.close()


async def test_another_model_is_not_limited(client: httpx.AsyncClient, fleet: Fleet, key: Key) -> None:
    conn = await asyncpg.connect(fleet.dsn)
    await put_adapter(conn, key.project_id, "other", digest="0" * 64, rank=8, size_bytes=1)
    await conn.close()
    await put_limit(fleet.dsn, key.limit("requests", "day", 0, model="tiny"))

    async def answers_of_both() -> tuple[int, int] | None:
        mine, others = await ask(client, key, 1), await ask(client, key, 1, model="tiny:other")
        return (mine.status_code, others.status_code) if mine.status_code == 429 else None

    assert await until(answers_of_both) == (429, 200)


async def test_a_soft_limit_refuses_nothing(client: httpx.AsyncClient, fleet: Fleet, key: Key) -> None:
    limit_id = await put_limit(fleet.dsn, key.limit("requests", "day", 1, hard=False))
    assert [(await ask(client, key, 1)).status_code for _ in range(3)] == [200] * 3
    await until_books_are(fleet, limit_id, 3)


async def test_a_prepaid_tenant_uses_its_balance_up_and_is_refused_until_there_is_credit(
    client: httpx.AsyncClient, fleet: Fleet, key: Key
) -> None:
    """Tokens cost 3 and 7 nanos; the rest of the balance is too little for a request."""
    least, whole = len(PROMPT) * INPUT_NANOS, len(PROMPT) * INPUT_NANOS + 4 * OUTPUT_NANOS
    await give_credit(fleet, key, 3 * whole - 1)
    assert await use_balance(client, key) == [4, 4, 3]
    refused = await ask(client, key)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "insufficient_quota")
    assert refused.headers["x-should-retry"] == "false"
    await give_credit(fleet, key, least + OUTPUT_NANOS)
    assert await use_balance(client, key) == [1 + 6 // OUTPUT_NANOS]


async def give_credit(fleet: Fleet, key: Key, amount_nanos: int) -> None:
    """Grant a credit to a project, and make it a prepaid one."""
    async with await Database.connect(fleet.dsn) as database, database.transaction() as conn:
        owner = (key.organization_id, key.project_id)
        await set_prepaid(conn, *owner, True)
        await grant_credit(conn, *owner, amount_nanos, reason="test", expires_at=None)


async def use_balance(client: httpx.AsyncClient, key: Key) -> list[int]:
    """Send requests one after another until one is refused with nothing reserved; return their completion tokens."""
    made = []
    for _ in range(50):
        reply = await ask(client, key)
        if reply.status_code == 200:
            made.append(reply.json()["usage"]["completion_tokens"])
        elif made and reply.json()["error"]["limit"]["reserved"] == 0:
            return made
        else:
            await asyncio.sleep(0.02)
    raise AssertionError(reply.text)
