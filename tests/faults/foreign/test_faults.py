"""Faults between a gateway and servers of other makers: a second server answers what it can, within the budgets.

Counts and shares are judged always, times with `--full` alone, on a machine that has little else to do.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from statistics import median
from typing import get_args

import httpx
import msgspec
import pytest

from gateway.domain.routing.breaker import CONSECUTIVE
from gateway.domain.routing.hedge_budget import MOST_SAVED, SHARE
from gateway.domain.routing.retry_budget import FLOOR_PER_S, WINDOW_S
from gateway.domain.routing.retry_budget import SHARE as RETRY_SHARE
from tests.faults.foreign.proxy import Fault, FaultProxy, ProxiedRequest, fault_proxy
from tests.faults.foreign.site import Desk
from tests.figures import figure
from tests.gateway.backends.foreign.fake import FakeServer, fake_server, saying
from tests.patience import PATIENCE_S, TRIES

NUM_CLIENTS = 8
POOL_NUMBERS = itertools.count()
PATIENT = {"first_token_seconds": 3.0, "idle_seconds": 3.0}
"""Settings with such long timeouts that a healthy server answers in time on a busy machine."""

FAULTS: tuple[Fault, ...] = get_args(Fault)
MAY_HAVE_BEGUN: frozenset[Fault] = frozenset({"reset in the midst", "slow body", "error after text"})
"""Faults after which a stream may have begun, so that no other server can answer."""


SLOWS: tuple[Fault, ...] = ("slow body", "lying usage")
"""The faults after which a server gets few requests, or none, for a while."""


class Reply(msgspec.Struct, frozen=True):
    """The reply to one request as the client received it."""

    status: int
    is_whole: bool
    """True if the answer was complete."""
    has_begun: bool = True
    """True if any text arrived."""
    first_s: float = 0.0
    """The seconds until the first text arrived."""


ASKED_S: list[float] = []
"""The times at which requests were sent to any pool, since all pools share one retry budget."""


class TwoServers:
    """A pool of two servers, each behind a fault proxy."""

    def __init__(self, desk: Desk, pool: str, proxies: list[FaultProxy], servers: list[FakeServer]) -> None:
        self.desk = desk
        self.pool = pool
        self.proxies = proxies
        self.servers = servers

    async def ask(self, *, stream: bool, model: str = "") -> Reply:
        """Send one request; return the reply as the client received it.

        stream: True: the reply is streamed. model: the model string; "": the usual one.
        """
        ASKED_S.append(time.monotonic())
        model = model or self.pool
        if not stream:
            reply = await self.desk.chat(model, "Say hello.")
            return Reply(reply.status_code, reply.status_code == httpx.codes.OK and "Hello world" in reply.text)
        body = {"model": model, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 16}
        began_s, first_s, text, status = time.perf_counter(), 0.0, "", 0
        request = self.desk.tenant.stream("POST", "/v1/chat/completions", json=body | {"stream": True})
        async with request as reply:
            status = reply.status_code
            async for line in reply.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    return Reply(status, is_whole=False, has_begun=bool(text), first_s=first_s)
                text += "".join(each["delta"].get("content") or "" for each in event["choices"])
                first_s = first_s or (time.perf_counter() - began_s if text else 0.0)
        return Reply(status, text == "Hello world", bool(text), first_s)

    async def ask_many(self, num: int, *, num_clients: int = NUM_CLIENTS, model: str = "") -> list[Reply]:
        """Send `num` requests by a few clients, half of them as streams; return what the clients saw."""
        left, seen = iter(range(num)), list[Reply]()

        async def client() -> None:
            for number in left:
                seen.append(await self.ask(stream=number % 2 == 0, model=model))

        await asyncio.gather(*(client() for _ in range(num_clients)))
        return seen

    @property
    def passed(self) -> list[ProxiedRequest]:
        return sorted((each for proxy in self.proxies for each in proxy.passed), key=lambda each: each.at_s)

    def forget(self) -> None:
        for proxy in self.proxies:
            proxy.passed.clear()


@pytest.fixture
async def two(desk: Desk) -> AsyncIterator[TwoServers]:
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(fake_server()) for _ in range(2)]
        proxies = [await stack.enter_async_context(fault_proxy(server.port)) for server in servers]
        pool = f"theirs-{next(POOL_NUMBERS)}"
        await stack.enter_async_context(desk.pool(pool, [proxy.url for proxy in proxies], **PATIENT))
        yield TwoServers(desk, pool, proxies, servers)


def always(fault: Fault | None) -> Callable[[str], Fault | None]:
    return lambda request_id: fault


def own_id(passed: ProxiedRequest) -> str:
    """Return the id of the client's request to which an attempt belongs. passed: the request at the proxy."""
    return passed.id.partition(".")[0]


@pytest.mark.parametrize("faults", [[each for each in FAULTS if each not in SLOWS], *([each] for each in SLOWS)])
async def test_what_a_second_server_can_answer_is_never_an_error(
    two: TwoServers, faults: list[Fault], full: bool
) -> None:
    if not full and len(faults) == 1:
        pytest.skip("these take long")
    bad, _ = two.proxies
    found = Counter[str]()
    for fault in faults:
        bad.choose = always(fault)
        answers = await two.ask_many(400 if full else 8)
        while not any(each.fault == fault for each in bad.passed):  # all went to the other one so far
            answers += await two.ask_many(NUM_CLIENTS)
            await asyncio.sleep(0.05)
        for seen in answers:
            assert seen.status == httpx.codes.OK, (fault, seen)
            if fault in MAY_HAVE_BEGUN and not seen.is_whole:
                assert seen.has_begun, (fault, seen)
                found["ended after its text had begun"] += 1
                continue
            assert seen.is_whole, (fault, seen)
            found["answered"] += 1
        bad.choose = always(None)
        num_passed = len(bad.passed)
        while fault not in SLOWS and len(bad.passed) == num_passed:  # left alone for a second
            await two.ask_many(NUM_CLIENTS)
            await asyncio.sleep(0.05)
    figure(f"{dict(found)}")


async def test_where_both_fail_at_times_only_what_failed_at_both_is_an_error(two: TwoServers, full: bool) -> None:
    draw = random.Random(4)
    quick = [each for each in FAULTS if each != "latency"]
    for proxy in two.proxies:
        proxy.choose = lambda request_id: draw.choice(quick) if draw.random() < 0.15 else None
    statuses = Counter[int]()
    for seen in await two.ask_many(4_000 if full else 60):
        statuses[seen.status] += 1
        if seen.status != httpx.codes.OK:
            assert seen.status in (502, 503), seen
    spoiled: dict[str, int] = {}
    for each in two.passed:
        if each.fault not in (None, "lying usage", "slow body"):
            spoiled[own_id(each)] = spoiled.get(own_id(each), 0) + 1
    num_twice = sum(number > 1 for number in spoiled.values())
    figure(f"{dict(statuses)}, {len(spoiled)} spoiled, {num_twice} at both")
    most = num_twice + 2 * CONSECUTIVE
    assert statuses[502] + statuses[503] <= most, "what nobody could avoid: both failed, or one was left alone"


@pytest.mark.parametrize("fault", ["reset", "status 500", "status 503", "error inside a 200", "away"])
async def test_retries_stay_within_their_budget_when_all_servers_fail(two: TwoServers, fault: str, full: bool) -> None:
    if not full and fault not in ("reset", "status 503"):
        pytest.skip("one of each kind is enough for each commit")
    for proxy in two.proxies:
        proxy.choose = always(None if fault == "away" else fault)  # type: ignore[arg-type]
        proxy.is_away = fault == "away"
    began_s, num_before = time.monotonic(), sum(time.monotonic() - each < WINDOW_S for each in ASKED_S)
    seen = await two.ask_many(2_000 if full else 40, num_clients=32 if full else NUM_CLIENTS)
    seconds = time.monotonic() - began_s
    assert all(each.status in (502, 503) for each in seen)
    num_retries = len(two.passed) - len({own_id(each) for each in two.passed})
    most = RETRY_SHARE * (num_before + len(seen)) + FLOOR_PER_S * (seconds + 1)
    figure(
        f"{fault}: {len(seen)} requests in {seconds:.1f} s, {len(two.passed)} sent, {num_retries} retries of {most:.0f}"
    )
    assert num_retries <= most


async def test_a_breaker_opens_soon_and_closes_soon_after_healing(two: TwoServers, full: bool) -> None:
    bad, _ = two.proxies
    await two.ask_many(20)
    two.forget()
    bad.choose = always("status 500")
    loop, is_done = asyncio.get_running_loop(), False

    async def load() -> None:
        while not is_done:
            seen = await two.ask(stream=True)
            assert seen.status == httpx.codes.OK
            await asyncio.sleep(0.01)

    clients = [asyncio.create_task(load()) for _ in range(NUM_CLIENTS)]
    try:
        await asyncio.sleep(12.0 if full else 1.5)
        failed_s = [each.at_s for each in bad.passed]
        opened_s = next(
            (one for one, other in itertools.pairwise([*failed_s, loop.time()]) if other - one > 0.7), failed_s[-1]
        )
        num_before = sum(each <= opened_s for each in failed_s)
        assert num_before <= CONSECUTIVE + NUM_CLIENTS, "those in a row, and those that were under way"
        assert len(failed_s) - num_before <= 5, "trials alone"
        bad.choose = always(None)
        healed_s = loop.time()
        async with asyncio.timeout(PATIENCE_S):
            while not bad.passed or bad.passed[-1].at_s < healed_s:  # noqa: ASYNC110 - no event tells
                await asyncio.sleep(0.02)
    finally:
        is_done = True
        await asyncio.gather(*clients)
    closed_s = bad.passed[-1].at_s
    figure(f"open after {opened_s - failed_s[0]:.2f} s, closed {closed_s - healed_s:.2f} s after healing")
    if full:
        assert opened_s - failed_s[0] <= 2.0
        assert closed_s - healed_s <= 10.0


async def test_a_hedge_bounds_the_first_token_where_servers_stall(two: TwoServers, full: bool) -> None:
    draw, usual_s, delay_ms = random.Random(9), 0.2 if full else 0.02, 400 if full else 150
    for proxy in two.proxies:
        proxy.delay_s = lambda request_id: usual_s + (2.0 if full else 0.4) * (draw.random() < 0.02)
    num, seen = 2_000 if full else 60, list[Reply]()
    hedged = {"hedge": {"node": {"target": two.pool}, "delay_ms": delay_ms}}
    async with two.desk.route("hedged", hedged):
        await two.ask_many(40, model="hedged")
        two.forget()
        if full:
            seen = await at_rate(two, num, per_s=20.0, model="hedged")
        else:
            seen = await two.ask_many(num, model="hedged")
    assert all(each.is_whole for each in seen)
    num_more = len(two.passed) - num
    times_ms = sorted(each.first_s * 1e3 for each in seen if each.first_s)
    p99_ms, usual_ms = times_ms[int(0.99 * len(times_ms))], median(times_ms)
    figure(f"{num_more} of {num} asked twice; first text p50 {usual_ms:.1f}, p99 {p99_ms:.1f} ms, delay {delay_ms} ms")
    assert num_more <= SHARE * num + MOST_SAVED
    if full:
        assert num_more <= SHARE * num
        assert p99_ms <= delay_ms + 1.3 * usual_ms


@pytest.mark.parametrize("kind", ["first token", "tokens"])
async def test_a_server_that_is_five_times_slower_gets_few_requests(two: TwoServers, kind: str, full: bool) -> None:
    if not full and kind == "tokens":
        pytest.skip("one kind is enough for each commit")
    for number, server in enumerate(two.servers):
        times = 5.0 if number == 0 else 1.0
        if kind == "first token":
            usual_s = 0.15 if full else 0.1  # far above what a busy machine adds
            two.proxies[number].delay_s = lambda request_id, times=times, usual_s=usual_s: usual_s * times  # type: ignore[misc]
        else:
            server.answer = saying(*["word "] * 10, counts=(9, 10), pause_s=(0.02 if full else 0.004) * times)
    for num_clients in (2, 10) if full else (4,):
        two.forget()
        if full:
            began_s, loop = asyncio.get_running_loop().time(), asyncio.get_running_loop()
            while loop.time() < began_s + 10.0:
                await two.ask_many(20, num_clients=num_clients)
            two.forget()
            while loop.time() < began_s + 30.0:
                await two.ask_many(20, num_clients=num_clients)
        else:
            await two.ask_many(40, num_clients=num_clients)
        for _ in range(TRIES):  # on a busy machine the faster server looks slow, too, at times
            if not full:
                two.forget()
                await two.ask_many(50, num_clients=num_clients)
            slow, fast = (len(proxy.passed) for proxy in two.proxies)
            if full or slow <= 0.1 * (slow + fast):
                break
        figure(f"{kind}, {num_clients} clients: the slow server got {slow} of {slow + fast}")
        assert slow <= 0.1 * (slow + fast)


async def at_rate(two: TwoServers, num: int, *, per_s: float, model: str) -> list[Reply]:
    """Send `num` streaming requests at a fixed rate; return the replies as clients received them.

    per_s: the requests a second.
    """
    loop = asyncio.get_running_loop()
    began_s, tasks = loop.time(), []
    for number in range(num):
        await asyncio.sleep(max(0.0, began_s + number / per_s - loop.time()))
        tasks.append(asyncio.create_task(two.ask(stream=True, model=model)))
    return list(await asyncio.gather(*tasks))
