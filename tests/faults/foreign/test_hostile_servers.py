"""Hostile servers behind a gateway: tenants learn nothing of them, and the traffic of others does not wait for them."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator
from statistics import median
from typing import Any

import httpx
import pytest

from tests.faults.foreign.behaviours import BEHAVIOURS, GOOD, behave
from tests.faults.foreign.hostile_process import hostile_process
from tests.faults.foreign.site import PASSWORD, Desk
from tests.figures import figure
from tests.gateway.backends.foreign.fake import FakeServer, fake_server
from tests.gateway.backends.foreign.hostile import HOSTILE, KEY, LYING, ODD, OF_REQUEST, WORDS
from tests.installation.waiting import until
from tests.patience import PATIENCE_S

NUM_CLIENTS = 6
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
SHORT = {"first_token_seconds": 2.0, "idle_seconds": 1.0, "total_seconds": 4.0, "health_seconds": 0.5}


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with fake_server() as server:
        server.answer = behave
        yield server


async def test_nothing_of_a_hostile_server_reaches_a_tenant(desk: Desk, server: FakeServer, full: bool) -> None:
    secrets = (*WORDS, server.url.removeprefix("http://"))
    names = list(BEHAVIOURS)[:: 1 if full else 3]
    random.Random(1).shuffle(names)
    left, asked = iter(names), list[tuple[str, httpx.Response]]()

    async def ask(name: str, **fields: Any) -> bool:
        """Send a request; return whether the server got it. After failures a server is left alone for a while."""
        asked.append((name, reply := await desk.chat("hostile", name, **fields)))
        return any(each.headers["x-request-id"] == reply.headers["x-request-id"] for each in server.received)

    async def client(stream: bool) -> None:
        for name in left:
            fields: dict[str, Any] = {"stream": stream, "tools": TOOLS} if name in OF_REQUEST else {"stream": stream}
            while not await ask(name, **fields):
                await until(lambda: ask(GOOD, stream=stream), pause_s=0.1)  # which ends that
            for _ in range(2):  # so many good ones that the server is seldom left alone
                await ask(GOOD, **fields)

    async with desk.pool("hostile", [server.url], key=KEY, **SHORT):
        await asyncio.gather(*(client(number % 2 == 0) for number in range(NUM_CLIENTS)))
        for name, reply in asked:
            shown = f"{reply.status_code} {reply.headers} {reply.text}"
            assert not [word for word in secrets if word in shown], (name, shown)
        answered = {each.headers["x-request-id"] for each in server.received}
        served = [(name, reply) for name, reply in asked if reply.headers["x-request-id"] in answered]
        good = [reply for name, reply in served if name in ODD or name in LYING or name == GOOD]
        bad = [reply.text for reply in good if reply.status_code != httpx.codes.OK or "Hello" not in reply.text]
        assert len(bad) < 0.1 * len(good), bad  # some may come too late on a slow machine
        assert {name for name, _ in served} >= set(names)
        await desk.ledger(answered)
        async with tenants_people(desk) as people:
            pages = await pages_of(people, desk.site.key.project_id, asked[0][1].headers["x-request-id"])
    assert len(pages) > 30
    for path, text in pages.items():
        assert not [word for word in secrets if word in text], path


async def pages_of(people: httpx.AsyncClient, project_id: str, request_id: str) -> dict[str, str]:
    """Return the pages that the owner of a project may read about a project and a request, by path."""
    document = (await people.get("/openapi.json")).json()
    pages: dict[str, str] = {}
    for path, methods in document["paths"].items():
        filled = path.replace("{project_id}", project_id).replace("{request_id}", request_id)
        if "get" not in methods or "{" in filled or path.endswith("/live"):  # which tells changes as they come
            continue
        reply = await people.get(filled)
        if reply.status_code == httpx.codes.OK:
            pages[filled] = reply.text
    return pages


class tenants_people:
    """A client that is logged in as the owner of the tenant's project."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._client = httpx.AsyncClient(base_url=desk.site.gateway.url, trust_env=False, timeout=PATIENCE_S)

    async def __aenter__(self) -> httpx.AsyncClient:
        operator, email = self._desk.operator, "owner@acme.example.com"
        user = await operator.post("/users", json={"email": email, "role": None, "password": PASSWORD})
        assert user.status_code == 200, user.text
        body = {"user_id": user.json()["id"], "role": "owner"}
        member = await operator.post(f"/projects/{self._desk.site.key.project_id}/users", json=body)
        assert member.status_code == 200, member.text
        reply = await self._client.post("/admin/v1/login", json={"email": email, "password": PASSWORD})
        assert reply.status_code == 200, reply.text
        self._client.headers["x-csrf-token"] = reply.json()["csrf_token"]
        return self._client

    async def __aexit__(self, *error: object) -> None:
        await self._client.aclose()


async def test_the_traffic_of_others_does_not_wait_for_hostile_servers(desk: Desk, full: bool) -> None:
    """At one rate of requests, the 99th percentile of others' times is the same beside good servers and beside hostile
    ones."""
    if not full:
        pytest.skip("times are judged by hand")
    ratios = []
    with hostile_process() as url:
        async with (
            fake_server() as other,
            desk.pool("hostile", [url], **SHORT),
            desk.pool("others", [other.url], **SHORT),
        ):
            await p99_ms(desk, [GOOD], seconds=5.0)
            for _ in range(6):
                good_ms = await p99_ms(desk, [GOOD], seconds=15.0)
                bad_ms = await p99_ms(desk, [*HOSTILE, *[GOOD] * 2 * len(HOSTILE)], seconds=15.0)
                ratios.append(bad_ms / good_ms)
                figure(f"p99 beside good ones {good_ms:.1f}, beside hostile ones {bad_ms:.1f} ms")
    figure(f"median of ratios {median(ratios):.2f}")
    assert median(ratios) <= 1.2


async def p99_ms(desk: Desk, names: list[str], *, seconds: float, per_s: float = 40.0) -> float:
    """Return the 99th percentile of the times of others' requests, beside half as many for the named behaviours.

    seconds: how long requests are sent. per_s: the requests a second.
    """
    mixed = list(names)
    random.Random(2).shuffle(mixed)
    loop, times_ms, tasks = asyncio.get_running_loop(), list[float](), set[asyncio.Task[None]]()

    async def one() -> None:
        began_s = time.perf_counter()
        reply = await desk.chat("others", "Say hello.")
        assert reply.status_code == httpx.codes.OK
        times_ms.append((time.perf_counter() - began_s) * 1e3)

    async def hostile(name: str) -> None:
        await desk.chat("hostile", name, stream=True)

    began_s = loop.time()
    for number, name in enumerate(itertools.cycle(mixed)):
        due_s = began_s + number * 2 / per_s
        if due_s > began_s + seconds:
            break
        await asyncio.sleep(max(0.0, due_s - loop.time()))
        tasks |= {asyncio.create_task(one()), asyncio.create_task(one()), asyncio.create_task(hostile(name))}
    await asyncio.gather(*tasks)
    return sorted(times_ms)[int(0.99 * len(times_ms))]
