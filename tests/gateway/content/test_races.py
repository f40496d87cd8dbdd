"""Each idempotency key is run and billed once, over two gateways on one database, whichever request comes first."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import asyncpg
import httpx
import pytest

from tests.gateway.content.conftest import ledger_rows
from tests.gateway.limits.fleet import Fleet, Key, make_key, running_fleet
from tests.patience import PATIENCE_S

NUM_PAIRS, NUM_PAIRS_FULL = 50, 1000
NUM_RACES, NUM_RACES_FULL = 2, 20
NUM_RACING = 100


@pytest.fixture(scope="module")
def fleet(module_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(
        module_dsn, tmp_path_factory.mktemp("races"), num_gateways=2, engine_flags=("--tokens-per-s", "300")
    ) as fleet:
        yield fleet


def limits(max_connections: int) -> httpx.Limits:
    """Return limits of a client that uses no connection twice.

    Otherwise a busy client might send on an idle connection just as the gateway closes it.
    """
    return httpx.Limits(max_connections=max_connections, max_keepalive_connections=0)


def request_of(number: int) -> tuple[str, dict[str, Any]]:
    """Return path and body of a request with one prompt; the kind depends on the number."""
    match number % 4:
        case 0:
            return "/v1/embeddings", {"model": "tiny", "input": f"pair {number}"}
        case 1:
            return "/v1/completions", {"model": "tiny", "prompt": f"pair {number}", "max_tokens": 5}
    messages = [{"role": "user", "content": f"pair {number}"}]
    return "/v1/chat/completions", {"model": "tiny", "messages": messages, "max_tokens": 5, "stream": number % 4 == 2}


async def send(client: httpx.AsyncClient, url: str, tenant: Key, key: str, number: int) -> httpx.Response:
    path, body = request_of(number)
    reply = await client.post(f"{url}{path}", json=body, headers=tenant.headers | {"idempotency-key": key})
    assert reply.status_code == 200, reply.text
    return reply


def one_execution(replies: list[httpx.Response]) -> str:
    """Return the id of the one request that was executed; check that all other replies replay its reply."""
    assert len({reply.content for reply in replies}) == 1
    (ran,) = [reply for reply in replies if "idempotent-replayed" not in reply.headers]
    originals = {reply.headers["x-lorikeet-original-request-id"] for reply in replies if reply is not ran}
    assert originals == {ran.headers["x-request-id"]}
    return str(ran.headers["x-request-id"])


async def test_two_equal_requests_run_once_and_are_billed_once(fleet: Fleet, full: bool) -> None:
    num_pairs = NUM_PAIRS_FULL if full else NUM_PAIRS
    tenant, chance = await make_key(fleet.dsn, "pairs"), random.Random(1)
    async with httpx.AsyncClient(timeout=PATIENCE_S, limits=limits(32)) as client:
        places = asyncio.Semaphore(8)

        async def pair(number: int) -> str:
            async def one(url: str, delay_s: float) -> httpx.Response:
                await asyncio.sleep(delay_s)
                return await send(client, url, tenant, f"pair-{number}", number)

            async with places:
                delays = [0.0, chance.choice([0.0, 0.0, 0.005, 0.02, 0.05])]
                urls = chance.sample(fleet.urls, 2) if chance.random() < 0.7 else [chance.choice(fleet.urls)] * 2
                return one_execution(await asyncio.gather(*map(one, urls, delays)))

        ran = await asyncio.gather(*map(pair, range(num_pairs)))
    assert len(set(ran)) == num_pairs
    assert len(await ledger_rows(fleet.dsn, tenant.project_id, num_pairs)) == num_pairs
    print(f"{num_pairs} pairs: {num_pairs} executions, {num_pairs} rows in the ledger")


async def test_a_hundred_equal_requests_at_once_run_once(fleet: Fleet, full: bool) -> None:
    num_races = NUM_RACES_FULL if full else NUM_RACES
    tenant = await make_key(fleet.dsn, "races")
    async with httpx.AsyncClient(timeout=PATIENCE_S, limits=limits(NUM_RACING)) as client:
        for race in range(num_races):
            racing = [send(client, fleet.urls[n % 2], tenant, f"race-{race}", race + 1) for n in range(NUM_RACING)]
            one_execution(await asyncio.gather(*racing))
    assert len(await ledger_rows(fleet.dsn, tenant.project_id, num_races)) == num_races
    print(f"{num_races} races of {NUM_RACING}: {num_races} executions")


async def test_a_gateway_that_dies_leaves_a_key_that_nobody_runs_again(fleet: Fleet) -> None:
    """This test is the last of its module, since it kills a gateway."""
    tenant = await make_key(fleet.dsn, "dies")
    body = {"model": "tiny", "prompt": "a long story", "max_tokens": 300, "ignore_eos": True, "stream": True}
    headers = tenant.headers | {"idempotency-key": "dies"}
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            async with client.stream("POST", f"{fleet.urls[1]}/v1/completions", json=body, headers=headers) as reply:
                async for _ in reply.aiter_bytes():
                    fleet.gateways[1].kill()
        waiting = asyncio.create_task(client.post(f"{fleet.urls[0]}/v1/completions", json=body, headers=headers))
        await asyncio.sleep(0.2)
        assert not waiting.done()  # the killed gateway may still be alive, for all that the other one knows
        conn = await asyncpg.connect(fleet.dsn)
        # As a minute of silence would; it is asked some seconds more.
        await conn.execute("UPDATE idempotency_keys SET alive_until = now() WHERE project_id = $1", tenant.project_id)
        await conn.close()
        lost = await waiting
        assert (lost.status_code, lost.json()["error"]["code"]) == (409, "idempotency_reply_lost")
        assert lost.headers["x-should-retry"] == "false"
        anew = await client.post(
            f"{fleet.urls[0]}/v1/completions",
            json=body | {"max_tokens": 2},
            headers=tenant.headers | {"idempotency-key": "another"},
        )
        assert anew.status_code == 200
