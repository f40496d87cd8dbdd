"""Requests to servers that fail at every byte of a reply: one billed attempt each, by the written rule."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Literal

import httpx
import msgspec
import pytest

from tests.faults.foreign.scripted import PROMPT_TOKENS, Script, ScriptedServer, SentReply, billed, random_script
from tests.faults.foreign.site import SUPERSEDED, Desk, Row
from tests.figures import figure
from tests.installation.tenants import put_limit

NUM_REQUESTS, NUM_FULL = 70, 5_000
NUM_CLIENTS = 12
PATIENT = {"first_token_seconds": 3.0, "idle_seconds": 1.5}
"""Settings with such long timeouts that all bytes of a server arrive in time on a busy machine."""

FAILING = 0.3
"""The share of replies that do not complete: so few that circuit breakers seldom open."""

LEAVING = 0.06
"""The share of streaming clients that disconnect during the reply."""

TEMPLATE_TOKENS, MESSAGE_TOKENS = 256, 16
"""The tokens that the rule for bounding prompts adds for a template and for each message."""

Way = Literal["one", "two", "fallback", "hedge", "cascade"]
SERVERS: dict[str, tuple[str, ...]] = {"one": ("a",), "two": ("b", "c"), "three": ("d", "e")}
"""The servers of each pool."""

NAMES = [name for names in SERVERS.values() for name in names]
WAYS: dict[Way, dict[str, Any] | None] = {
    "one": None,
    "two": None,
    "fallback": {"fallback": {"nodes": [{"target": "one"}, {"target": "two"}], "first_token_ms": 400}},
    "hedge": {"hedge": {"node": {"target": "three"}, "delay_ms": 40}},
    "cascade": {"cascade": {"nodes": [{"target": "two"}, {"target": "three"}], "accept": {"regex": "word"}}},
}
FIRST_SEED = int(os.environ.get("FIRST_SEED", "0"))


class AnsweredRequest(msgspec.Struct):
    """A request, and its reply as the client saw it."""

    way: Way
    prompt: str
    has_left: bool = False
    request_id: str = ""
    status: int = 0
    text: str = ""
    usage: dict[str, int] | None = None


class World:
    """All servers, and the requests that were sent."""

    def __init__(self, desk: Desk, servers: dict[str, ScriptedServer]) -> None:
        self.desk = desk
        self.servers = servers
        self.asked: list[AnsweredRequest] = []

    async def ask(self, draw: random.Random) -> None:
        scripts = {name: random_script(draw, failing=FAILING) for name in NAMES}
        way: Way = draw.choice(tuple(WAYS))
        if way == "hedge" and draw.random() < 0.3:
            scripts = {name: msgspec.structs.replace(each, first_s=0.06) for name, each in scripts.items()}
        asked = AnsweredRequest(way, json.dumps(msgspec.to_builtins(scripts)))
        self.asked.append(asked)
        if draw.random() < 0.5:
            leaves_after = draw.randint(1, 4) if draw.random() < LEAVING else None
            await self._stream(asked, leaves_after)
        else:
            reply = await self.desk.chat(way, asked.prompt)
            asked.request_id, asked.status = reply.headers["x-request-id"], reply.status_code
            if reply.status_code == httpx.codes.OK:
                body = reply.json()
                asked.text, asked.usage = body["choices"][0]["message"]["content"] or "", body["usage"]

    async def _stream(self, asked: AnsweredRequest, leaves_after: int | None) -> None:
        body = {"model": asked.way, "messages": [{"role": "user", "content": asked.prompt}], "max_tokens": 16}
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        async with self.desk.tenant.stream("POST", "/v1/chat/completions", json=body) as reply:
            asked.request_id, asked.status = reply.headers["x-request-id"], reply.status_code
            if reply.status_code != httpx.codes.OK:
                return
            num_events = 0
            async for line in reply.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    return
                asked.usage = chunk.get("usage") or asked.usage
                for choice in chunk["choices"]:
                    asked.text += choice["delta"].get("content") or ""
                num_events += 1
                if num_events == leaves_after:
                    asked.has_left = True
                    return

    def sent(self, row: Row) -> list[SentReply]:
        """Return the replies that may belong to an attempt, since ids of attempts and of further rows look alike."""
        upstream = f"{row.request_id}.{row.attempt}" if row.attempt else row.request_id
        names = SERVERS[row.model]
        return [each for name in names for each in self.servers[name].sent if each.id == upstream]


@pytest.fixture
async def world(desk: Desk) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        servers = {name: ScriptedServer(name) for name in NAMES}
        for server in servers.values():
            await server.start()
            stack.push_async_callback(server.stop)
        for pool, names in SERVERS.items():
            await stack.enter_async_context(desk.pool(pool, [servers[name].url for name in names], **PATIENT))
        for way, root in WAYS.items():
            if root is not None:
                await stack.enter_async_context(desk.route(way, root))
        yield World(desk, servers)


async def test_of_each_request_one_attempt_is_billed_by_the_written_rule(world: World, full: bool) -> None:
    num_requests, key = NUM_FULL if full else NUM_REQUESTS, world.desk.site.key
    tokens = await put_limit(world.desk.site.dsn, key.limit("tokens", "month", 10**9))
    draw = random.Random(FIRST_SEED)

    async def client(own: random.Random) -> None:
        while sum(bool(each.request_id) for each in world.asked) < num_requests:
            await world.ask(own)

    async with asyncio.TaskGroup() as group:
        for _ in range(NUM_CLIENTS):
            group.create_task(client(random.Random(draw.random())))

    sent_ids = {each.id.partition(".")[0] for server in world.servers.values() for each in server.sent}
    rows = await world.desk.ledger(sent_ids)
    reasons = Counter[str]()
    by_request: dict[str, list[Row]] = {}
    for request_id, attempts in rows.items():
        by_request.setdefault(request_id.partition(".")[0], []).extend(attempts)
    for asked in world.asked:
        attempts = by_request.get(asked.request_id, [])
        counted = [row for row in attempts if row.finish_reason != SUPERSEDED]
        assert all((row.prompt_tokens, row.completion_tokens) == (0, 0) for row in attempts if row not in counted)
        if not attempts:
            assert asked.request_id not in sent_ids, asked
            assert asked.status in (502, 503), asked
            reasons["not sent"] += 1
            continue
        if not counted:  # an attempt was to be followed by another one, which no server could take
            assert asked.status in (502, 503), (asked, attempts)
            reasons["followed in vain"] += 1
            continue
        assert len(counted) == len({row.request_id for row in counted}), "one of each answer"
        assert len(counted) == 1 or asked.way == "cascade", counted
        last = max(counted, key=lambda row: row.request_id)
        for row in counted:
            check_row(world, asked, row, is_last=row is last)
            reasons[row.finish_reason] += 1
        reasons[SUPERSEDED] += len(attempts) - len(counted)
    figure(f"{len(world.asked)} requests, {sum(len(each.sent) for each in world.servers.values())} sent: {reasons}")
    assert min(reasons["error"], reasons["stop"], reasons[SUPERSEDED]) > num_requests / 50

    mine = [row for each in world.asked for row in by_request.get(each.request_id, [])]
    spent = sum(row.prompt_tokens + row.completion_tokens for row in mine)
    assert await world.desk.settled(tokens) == [spent], "limits have settled what the ledger has"


def check_row(world: World, asked: AnsweredRequest, row: Row, *, is_last: bool) -> None:
    """Check a counted row of the ledger against what the servers sent and what the client saw.

    is_last: True: no attempt of the request came after this one.
    """
    candidates = world.sent(row)
    whole = row.completion_tokens + row.discarded_tokens
    if not candidates:
        assert (row.prompt_tokens, whole, row.finish_reason) == (0, 0, "error"), "the connection was lost before"
        return
    if row.finish_reason == "abort":
        assert asked.has_left
        by_then = {billed(each, num_parts) for each in candidates for num_parts in range(each.num_parts + 1)}
        assert row.completion_tokens in by_then, (row, candidates)
    else:
        assert whole in [billed(each) for each in candidates], (row, candidates, asked)
    bound = len(asked.prompt.encode()) + 2 * MESSAGE_TOKENS + TEMPLATE_TOKENS + 64
    assert row.prompt_tokens in (0, PROMPT_TOKENS) or row.prompt_tokens <= bound // 4
    if is_last:
        num_seen = len(asked.text.split())
        assert num_seen <= row.completion_tokens, "nobody reads what is not billed"
        if asked.usage is not None and not asked.has_left:
            assert asked.usage["completion_tokens"] == row.completion_tokens, (asked, row)


MOST = 3_000


async def test_a_limit_is_never_overrun_at_the_reserved_bound(desk: Desk, full: bool) -> None:
    """All billed usage together never exceeds a hard limit, whatever a server reports and however many requests run at
    once."""
    key, draw, num_refused = desk.site.key, random.Random(FIRST_SEED), 0
    limit_id = await put_limit(desk.site.dsn, key.limit("tokens", "day", MOST, model="tight"))

    async def client(own: random.Random) -> None:
        nonlocal num_refused
        for _ in range(60 if full else 6):
            script = random_script(own, failing=0.2)
            if own.random() < 0.2:
                script = Script(("word " * 400,) * 4, "none")  # more than was asked for
            reply = await desk.chat("tight", json.dumps({"a": msgspec.to_builtins(script)}))
            num_refused += reply.status_code == httpx.codes.TOO_MANY_REQUESTS

    server = ScriptedServer("a")
    await server.start()
    try:
        async with desk.pool("tight", [server.url]):
            await asyncio.gather(*(client(random.Random(draw.random())) for _ in range(8)))
    finally:
        await server.stop()
    assert num_refused > 0
    rows = await desk.ledger({each.id for each in server.sent})
    (settled,) = await desk.settled(limit_id)
    counted = [row for each in server.sent for row in rows[each.id]]
    figure(f"{settled} of {MOST} settled, {len(server.sent)} sent, {num_refused} refused")
    assert settled == sum(row.prompt_tokens + row.completion_tokens for row in counted)
    assert settled <= MOST
