"""Replicas and gateways die and freeze under load: no answer is wrong, one attempt of each request is billed, and only
requests fail that had begun on the replica that died.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections.abc import Iterator

import pytest

from tests.faults.pools.load import check_billed, load, wait_for_answers
from tests.faults.pools.world import BASES, Engines, World, running_world
from tests.installation.engines import FakeEngine

NUM_REQUESTS, NUM_REQUESTS_FULL = 120, 10_000
NUM_FAULTS, NUM_FAULTS_FULL = 3, 300
FROZEN_S = 4.0
"""The seconds for which a process is frozen: longer than three heartbeats."""

SEEDS = itertools.count(int(os.environ.get("FIRST_SEED", "0")))


@pytest.fixture(scope="module")
def running(module_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Engines]]:
    """Give a world and its engines for the module, with all processes running again at the end of each test."""
    with running_world(module_dsn, tmp_path_factory.mktemp("world"), engine_flags=("--tokens-per-s", "200")) as made:
        yield made


@pytest.fixture
def world(running: tuple[World, Engines]) -> World:
    running[0].outcomes.clear()
    return running[0]


@pytest.fixture
def engines(running: tuple[World, Engines]) -> Engines:
    return running[1]


async def test_all_adapters_of_both_bases_answer_and_no_answer_is_anothers(world: World, full: bool) -> None:
    num_requests = NUM_REQUESTS_FULL if full else NUM_REQUESTS
    async with load(world, next(SEEDS)):
        while world.outcomes["answered"] < num_requests:
            await wait_for_answers(world, min(200, num_requests))
    assert set(world.outcomes) == {"answered"}, world.outcomes
    await check_billed(world)


async def test_replicas_die_and_freeze_and_only_what_had_begun_there_fails(
    world: World, engines: Engines, full: bool
) -> None:
    seed = next(SEEDS)
    rng = random.Random(seed)
    async with load(world, seed):
        for _ in range(NUM_FAULTS_FULL if full else NUM_FAULTS):
            await wait_for_answers(world, 30)
            victim: FakeEngine = rng.choice(engines.of_base[rng.choice(BASES)])
            if rng.random() < 0.5:
                await asyncio.to_thread(victim.kill)
                await wait_for_answers(world, 30)
                await asyncio.to_thread(victim.start)
            else:
                with victim.frozen():
                    await asyncio.sleep(FROZEN_S)
                    await wait_for_answers(world, 30)
            await asyncio.sleep(1.0)  # the gateways connect again, so that another one may go next
    print(f"seed {seed}: {dict(world.outcomes)}")
    assert set(world.outcomes) <= {"answered", "ended after its text had begun"}, world.outcomes
    await check_billed(world)


async def test_a_gateway_dies_and_the_other_one_and_its_successor_go_on(world: World, full: bool) -> None:
    seed = next(SEEDS)
    rng = random.Random(seed)
    async with load(world, seed):
        for _ in range(NUM_FAULTS_FULL // 10 if full else 2):
            await wait_for_answers(world, 30)
            victim = rng.choice(world.gateways)
            await asyncio.to_thread(victim.kill)
            await asyncio.to_thread(victim.start)
            await wait_for_answers(world, 60)
    print(f"seed {seed}: {dict(world.outcomes)}")
    assert set(world.outcomes) <= {"answered", "cut off", "ended after its text had begun", "stream cut"}, (
        world.outcomes
    )
    await check_billed(world)
