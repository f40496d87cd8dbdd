"""Three gateways, the clocks of two jumping by an hour, never exceed a limit and refuse no more than they must."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import asyncpg
import httpx
import msgspec
import pytest

from gateway.bench.http import connect, post
from gateway.bench.open_loop import Connections
from gateway.domain.limits.limit import Unit, Window
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
from tests.patience import PATIENCE_S, least

PROMPT, MAX_TOKENS = [5, 6, 7, 8], 6
PARALLEL = 50
AMOUNTS: dict[Unit, int] = {
    "requests": 1,
    "tokens": len(PROMPT) + MAX_TOKENS,
    "output_tokens": MAX_TOKENS,
    "cost_nanos": len(PROMPT) * INPUT_NANOS + MAX_TOKENS * OUTPUT_NANOS,
}
"""The amounts of one request by unit, all of which it uses."""

USED = """
    SELECT count(*) AS requests, sum(prompt_tokens + completion_tokens)::bigint AS tokens,
           sum(completion_tokens)::bigint AS output_tokens,
           sum(cost_nanos)::bigint AS cost_nanos
    FROM ledger WHERE project_id = $1 GROUP BY date_trunc('minute', created_at)
"""


@pytest.fixture(scope="module")
def fleet(module_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(module_dsn, tmp_path_factory.mktemp("fleet")) as fleet:
        yield fleet


@asynccontextmanager
async def clients(fleet: Fleet) -> AsyncIterator[list[httpx.AsyncClient]]:
    limits = httpx.Limits(max_connections=100)
    opened = [httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, limits=limits) for url in fleet.urls]
    try:
        yield opened
    finally:
        for each in opened:
            await each.aclose()


async def ask(client: httpx.AsyncClient, key: Key, max_tokens: int = MAX_TOKENS) -> httpx.Response:
    return await client.post("/v1/completions", json=completion(PROMPT, max_tokens), headers=key.headers)


async def used(dsn: str, key: Key, unit: Unit) -> list[int]:
    """Return the used amount in each minute."""
    conn = await asyncpg.connect(dsn)
    try:
        return [row[unit] for row in await conn.fetch(USED, key.project_id)]
    finally:
        await conn.close()


class LimitedKey(msgspec.Struct, frozen=True):
    """A key with a limit under which exactly `fits` requests can be served."""

    key: Key
    unit: Unit
    window: Window
    fits: int

    @property
    def max(self) -> int:
        return AMOUNTS[self.unit] * (self.fits + 1) - 1  # and some that no request can use


async def limited_key(dsn: str, number: int) -> LimitedKey:
    units = list(AMOUNTS)
    key = await make_key(dsn, f"edge-{number}")
    limited = LimitedKey(key, units[number % len(units)], "minute" if number % 8 < 4 else "day", 1 + 7 * number % 40)
    await put_limit(dsn, key.limit(limited.unit, limited.window, limited.max))
    return limited


async def test_parallel_requests_at_the_edge_never_overshoot(fleet: Fleet, full: bool) -> None:
    ports = [int(url.rpartition(":")[2]) for url in fleet.urls]
    opened = [await connect("127.0.0.1", port) for port in ports for _ in range(PARALLEL)]
    gateways = [Connections(opened[first : first + PARALLEL]) for first in range(0, len(opened), PARALLEL)]
    body = msgspec.json.encode(completion(PROMPT, MAX_TOKENS))

    async def at_once(limited: LimitedKey) -> Counter[int]:
        request = post("/v1/completions", limited.key.secret, body)
        asked = (gateways[number % len(gateways)].ask(request) for number in range(PARALLEL))
        return Counter(await asyncio.gather(*asked))

    num_keys, at_once_keys = (1000, 50) if full else (30, 30)
    for first in range(0, num_keys, at_once_keys):
        limited = [await limited_key(fleet.dsn, number) for number in range(first, first + at_once_keys)]
        for each, statuses in zip(limited, await asyncio.gather(*map(at_once, limited)), strict=True):
            assert statuses.keys() <= {200, 429}, statuses
            spent = await used(fleet.dsn, each.key, each.unit)
            assert all(amount <= each.max for amount in spent), (each, spent)
            if each.window == "day" or len(spent) == 1:  # else a minute ended meanwhile
                assert statuses[200] >= min(each.fits, PARALLEL), (each, statuses)
                assert sum(spent) > each.max - AMOUNTS[each.unit]
    for connections in gateways:
        connections.close()


async def test_steady_load_below_a_limit_is_never_refused(fleet: Fleet, full: bool) -> None:
    """The load is 90% of a minute's limit for two minutes, or rises in a few seconds to 90% of a day's limit."""
    seconds, per_s = (120, 50) if full else (4, 60)
    key = await make_key(fleet.dsn, "steady")
    if full:
        await put_limit(fleet.dsn, key.limit("requests", "minute", round(per_s * 60 / 0.9)))
        await put_limit(fleet.dsn, key.limit("tokens", "minute", round(per_s * 60 * AMOUNTS["tokens"] / 0.9)))
    else:
        await put_limit(fleet.dsn, key.limit("requests", "day", round(per_s * seconds / 0.9)))
        await put_limit(fleet.dsn, key.limit("tokens", "day", round(per_s * seconds * AMOUNTS["tokens"] / 0.9)))
    async with clients(fleet) as gateways:
        loop = asyncio.get_running_loop()
        start_s = loop.time()

        async def one(number: int) -> int:
            await asyncio.sleep(start_s + number / per_s - loop.time())
            return (await ask(gateways[number % len(gateways)], key)).status_code

        statuses = Counter(await asyncio.gather(*(one(number) for number in range(per_s * seconds))))
    assert statuses == {200: per_s * seconds}


async def test_a_change_is_effective_on_every_gateway_within_a_second(fleet: Fleet) -> None:
    key = await make_key(fleet.dsn, "changed")
    async with clients(fleet) as gateways:
        for client in gateways:
            assert (await ask(client, key)).status_code == 200

        async def until(status: int) -> float:
            """Return the seconds until every gateway answers with this status."""
            start_s = time.monotonic()
            async with asyncio.timeout(PATIENCE_S):
                for client in gateways:
                    while (await ask(client, key, 1)).status_code != status:
                        pass
            return time.monotonic() - start_s

        async def change() -> float:
            """Change the limit a few times; return the seconds of the slowest change."""
            waits_s = []
            for most, status in ((0, 429), (10_000, 200), (2, 429), (20_000, 200)):
                await put_limit(fleet.dsn, key.limit("tokens", "day", most))
                waits_s.append(await until(status))
            return max(waits_s)

        assert await least(change, 1) < 1
