"""Replicas and gateways die and freeze under load: no answer is wrong, one attempt of each request is billed, and what
fails is what had begun on the one that died.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import httpx
import pytest

from tests.faults.pools.world import BASES, Engines, World, running_world
from tests.installation.engines import FakeEngine
from tests.patience import PATIENCE_S

NUM_REQUESTS, NUM_REQUESTS_FULL = 300, 10_000
NUM_FAULTS, NUM_FAULTS_FULL = 4, 300
NUM_CLIENTS = 12
PAUSE_S = 0.1
"""Of a client between two requests: there are always some under way, and a machine that others use can follow."""
FROZEN_S = 4.0
"""Longer than three heartbeats."""

SEEDS = itertools.count(int(os.environ.get("FIRST_SEED", "0")))


@pytest.fixture
def running(dsn: str, tmp_path: Path) -> Iterator[tuple[World, Engines]]:
    with running_world(dsn, tmp_path, engine_flags=("--tokens-per-s", "200")) as made:
        yield made


@pytest.fixture
def world(running: tuple[World, Engines]) -> World:
    return running[0]


@pytest.fixture
def engines(running: tuple[World, Engines]) -> Engines:
    return running[1]


@asynccontextmanager
async def load(world: World, seed: int) -> AsyncIterator[None]:
    """Clients that ask one thing after the other, of both gateways, until the context is left."""
    stop = asyncio.Event()

    async def client(number: int) -> None:
        rng = random.Random(f"{seed}-{number}")
        while not stop.is_set():
            await world.ask(http, world.some(rng), rng.choice(world.gateways))
            await asyncio.sleep(PAUSE_S)

    async with httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as http:
        clients = [asyncio.create_task(client(number)) for number in range(NUM_CLIENTS)]
        try:
            yield
        finally:
            stop.set()
            await asyncio.gather(*clients)


async def answers(world: World, num_more: int) -> None:
    """Return once so many more requests were answered."""
    target = world.outcomes["answered"] + num_more
    async with asyncio.timeout(PATIENCE_S):
        while world.outcomes["answered"] < target:  # noqa: ASYNC110 - counted by the clients
            await asyncio.sleep(0.02)


async def billed(world: World) -> None:
    """Hold the ledger against what clients got: one billed attempt of each answer, with its tokens."""
    conn = await asyncpg.connect(world.dsn)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                rows = await conn.fetch(
                    "SELECT request_id, attempt, finish_reason, completion_tokens FROM usage_attempts"
                )
                billed: dict[str, list[int]] = {}
                for row in rows:
                    if row["finish_reason"] != "superseded":
                        billed.setdefault(row["request_id"], []).append(row["completion_tokens"])
                if all(billed.get(id) == [tokens] for id, tokens in world.answered.items()):
                    break
                await asyncio.sleep(0.2)
        superseded = [row for row in rows if row["finish_reason"] == "superseded"]
        assert all(row["completion_tokens"] == 0 for row in superseded)
        assert all(len(attempts) == 1 for attempts in billed.values())
    except TimeoutError:
        wrong = {id: billed.get(id) for id, tokens in world.answered.items() if billed.get(id) != [tokens]}
        raise AssertionError(f"of {len(world.answered)} answers {len(wrong)} are billed otherwise: {wrong}") from None
    finally:
        await conn.close()


async def test_all_adapters_of_both_bases_answer_and_no_answer_is_anothers(world: World, full: bool) -> None:
    num_requests = NUM_REQUESTS_FULL if full else NUM_REQUESTS
    async with load(world, next(SEEDS)):
        while world.outcomes["answered"] < num_requests:
            await answers(world, min(200, num_requests))
    assert set(world.outcomes) == {"answered"}, world.outcomes
    await billed(world)


async def test_replicas_die_and_freeze_and_only_what_had_begun_there_fails(
    world: World, engines: Engines, full: bool
) -> None:
    seed = next(SEEDS)
    rng = random.Random(seed)
    async with load(world, seed):
        for _ in range(NUM_FAULTS_FULL if full else NUM_FAULTS):
            await answers(world, 30)
            victim: FakeEngine = rng.choice(engines.of_base[rng.choice(BASES)])
            if rng.random() < 0.5:
                await asyncio.to_thread(victim.kill)
                await answers(world, 30)
                await asyncio.to_thread(victim.start)
            else:
                with victim.frozen():
                    await asyncio.sleep(FROZEN_S)
                    await answers(world, 30)
            await asyncio.sleep(1.0)  # the gateways connect again, so that another one may go next
    print(f"seed {seed}: {dict(world.outcomes)}")
    assert set(world.outcomes) <= {"answered", "ended after its text had begun"}, world.outcomes
    await billed(world)


async def test_a_gateway_dies_and_the_other_one_and_its_successor_go_on(world: World, full: bool) -> None:
    seed = next(SEEDS)
    rng = random.Random(seed)
    async with load(world, seed):
        for _ in range(NUM_FAULTS_FULL // 10 if full else 2):
            await answers(world, 30)
            victim = rng.choice(world.gateways)
            await asyncio.to_thread(victim.kill)
            await asyncio.to_thread(victim.start)
            await answers(world, 60)
    print(f"seed {seed}: {dict(world.outcomes)}")
    assert set(world.outcomes) <= {"answered", "cut off", "ended after its text had begun", "stream cut"}, (
        world.outcomes
    )
    await billed(world)
