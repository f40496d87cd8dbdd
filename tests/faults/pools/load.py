"""A load on a world: clients that ask, the wait for their answers, and the ledger held against what they got."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import httpx

from tests.faults.pools.world import World
from tests.patience import PATIENCE_S

NUM_CLIENTS = 12
PROBE = "probe-"
"""The beginning of the ids of requests by which agents try engines."""
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


_BILLED = """
    SELECT request_id, sum(completion_tokens + discarded_tokens)::bigint AS tokens
    FROM usage_attempts GROUP BY request_id
"""


async def differences(dsn: str, produced: Path) -> list[str]:
    """Return a line for each request that is billed for more than was made, or made and not billed.

    produced: the file in which engines note tokens; those that agents ask for to try an engine are nobody's.
    """
    conn = await asyncpg.connect(dsn)
    try:
        rows = {row["request_id"]: row["tokens"] for row in await conn.fetch(_BILLED)}
    finally:
        await conn.close()
    made = await asyncio.to_thread(_lines_in, produced)
    wrong = [f"{id}: {num} billed, {made[id]} made" for id, num in rows.items() if num > made[id]]
    return wrong + [
        f"{id}: {made[id]} made, billed to nobody" for id in made.keys() - rows.keys() if not id.startswith(PROBE)
    ]


def _lines_in(file: Path) -> Counter[str]:
    return Counter(file.read_text().splitlines()) if file.exists() else Counter()
