"""A load on a world: clients that ask, the wait for their answers, and the ledger held against what they got."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import httpx

from tests.faults.pools.world import World
from tests.patience import PATIENCE_S

NUM_CLIENTS = 12
PAUSE_S = 0.2
"""Pause of a client between two requests: there are always some under way, and a machine that others use can follow."""


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
