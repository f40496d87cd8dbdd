"""Three gateways, one an hour early and one an hour late, never exceed a limit and refuse no more than they must."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import asyncpg
import httpx
import pytest

from gateway.limits.limit import Unit
from tests.conftest import with_database
from tests.gateway.conftest import _create_database
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

PROMPT, MAX_TOKENS = [5, 6, 7, 8], 6
PARALLEL = 50
AMOUNTS: dict[Unit, int] = {
    "requests": 1,
    "tokens": len(PROMPT) + MAX_TOKENS,
    "output_tokens": MAX_TOKENS,
    "cost_nanos": len(PROMPT) * INPUT_NANOS + MAX_TOKENS * OUTPUT_NANOS,
}
"""Of one request, which uses all that it reserves."""

USED = """
    SELECT count(*) AS requests, sum(prompt_tokens + completion_tokens)::bigint AS tokens,
           sum(completion_tokens)::bigint AS output_tokens,
           sum(cost_nanos)::bigint AS cost_nanos
    FROM ledger WHERE project_id = $1 GROUP BY date_trunc('minute', created_at)
"""


@pytest.fixture(scope="module")
def fleet(postgres: str, database_template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    asyncio.run(_create_database(postgres, "fleet", database_template))
    with running_fleet(with_database(postgres, "fleet"), tmp_path_factory.mktemp("fleet")) as fleet:
        yield fleet


@asynccontextmanager
async def clients(fleet: Fleet) -> AsyncIterator[list[httpx.AsyncClient]]:
    limits = httpx.Limits(max_connections=100)
    opened = [httpx.AsyncClient(base_url=url, timeout=60, limits=limits) for url in fleet.urls]
    try:
        yield opened
    finally:
        for each in opened:
            await each.aclose()


async def ask(client: httpx.AsyncClient, key: Key, max_tokens: int = MAX_TOKENS) -> httpx.Response:
    return await client.post("/v1/completions", json=completion(PROMPT, max_tokens), headers=key.headers)


async def used(dsn: str, key: Key, unit: Unit) -> list[int]:
    """In each minute."""
    conn = await asyncpg.connect(dsn)
    try:
        return [row[unit] for row in await conn.fetch(USED, key.project_id)]
    finally:
        await conn.close()


async def test_parallel_requests_at_the_edge_never_overshoot(fleet: Fleet, full: bool) -> None:
    num_keys = 50 if full else 8
    units = list(AMOUNTS)
    limited = []
    for number in range(num_keys):
        unit = units[number % len(units)]
        key = await make_key(fleet.dsn, f"edge-{number}")
        fits = 1 + 7 * number % 40
        most = AMOUNTS[unit] * fits + (AMOUNTS[unit] - 1)  # and some that no request can use
        window = "minute" if number % 8 < 4 else "day"
        await put_limit(fleet.dsn, key.limit(unit, window, most))  # type: ignore[arg-type]
        limited.append((key, unit, window, fits, most))

    async with clients(fleet) as gateways:
        statuses: dict[str, Counter[int]] = {key.id: Counter() for key, *_ in limited}

        async def one(key: Key, number: int) -> None:
            reply = await ask(gateways[number % len(gateways)], key)
            statuses[key.id][reply.status_code] += 1

        await asyncio.gather(*(one(key, number) for number in range(PARALLEL) for key, *_ in limited))
    for key, unit, window, fits, most in limited:
        assert statuses[key.id].keys() <= {200, 429}, statuses[key.id]
        spent = await used(fleet.dsn, key, unit)
        assert all(each <= most for each in spent), (unit, window, spent, most)
        if window == "day" or len(spent) == 1:  # else a minute ended meanwhile
            assert statuses[key.id][200] >= min(fits, PARALLEL), (unit, window, statuses[key.id], fits)
            assert sum(spent) > most - AMOUNTS[unit]


async def test_steady_load_below_a_limit_is_never_refused(fleet: Fleet, full: bool) -> None:
    """At 90% of it: of a minute's limit for two minutes, or in a few seconds up to 90% of a day's."""
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
            """Seconds until every gateway answers so."""
            start_s = time.monotonic()
            for client in gateways:
                while (await ask(client, key, 1)).status_code != status:
                    assert time.monotonic() - start_s < 5
            return time.monotonic() - start_s

        waits_s = []
        for most, status in ((0, 429), (10_000, 200), (2, 429), (20_000, 200)):
            await put_limit(fleet.dsn, key.limit("tokens", "day", most))
            waits_s.append(await until(status))
    assert max(waits_s) < 1, waits_s
