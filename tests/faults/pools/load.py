"""A load on a world: clients that ask, the wait for their answers, and the ledger held against what they got."""

from __future__ import annotations

import asyncio
import datetime
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import httpx

from tests.faults.pools.world import World
from tests.patience import PATIENCE_S

NUM_CLIENTS = 12
PROBE = "probe-"
"""The prefix of the ids of requests with which agents probe engines."""
PAUSE_S = 0.2
"""The seconds between two requests of a client, so that some always run and a busy machine can follow."""


@asynccontextmanager
async def load(world: World, seed: int) -> AsyncIterator[None]:
    """Run clients that send one request after the other to both gateways until the context is left."""
    stop = asyncio.Event()

    async def client(number: int) -> None:
        rng = random.Random(f"{seed}-{number}")
        while not stop.is_set():
            await world.ask(http, world.random_request(rng), rng.choice(world.gateways))
            await asyncio.sleep(PAUSE_S)

    async with httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as http:
        clients = [asyncio.create_task(client(number)) for number in range(NUM_CLIENTS)]
        try:
            yield
        finally:
            stop.set()
            await asyncio.gather(*clients)


async def wait_for_answers(world: World, num_more: int) -> None:
    """Wait until `num_more` more requests are answered."""
    target = world.outcomes["answered"] + num_more
    async with asyncio.timeout(PATIENCE_S):
        while world.outcomes["answered"] < target:  # noqa: ASYNC110 - counted by the clients
            await asyncio.sleep(0.02)


# As the view usage_attempts, which would look at every attempt.
_ATTEMPTS = """
    SELECT (k.whole).* FROM ledger f CROSS JOIN LATERAL (
        SELECT whole_attempt(r ORDER BY r.revision) AS whole FROM ledger r
        WHERE r.request_id = f.request_id AND r.attempt = f.attempt AND r.created_at = f.created_at
    ) k
    WHERE f.kind = 'usage' AND f.revision = 0 AND ($1::timestamptz IS NULL OR f.created_at >= $1)
"""


async def check_billed(world: World, since: datetime.datetime | None = None) -> None:
    """Check the ledger against clients' answers: each answer has one billed attempt, with its tokens.

    since: the time of the first attempts that are looked at; None for all.
    """
    conn = await asyncpg.connect(world.dsn)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                rows = await conn.fetch(_ATTEMPTS, since)
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


class TokensMade:
    """The numbers of tokens that engines have written to a file, by request."""

    def __init__(self, file: Path) -> None:
        self.counts: Counter[str] = Counter()
        self._file = file
        self._num_read = 0
        """Bytes of the file that are in the counts."""

    def read(self) -> set[str]:
        """Read the new lines of the engines' file, count each request's lines, and return the requests."""
        if not self._file.exists():
            return set()
        with self._file.open("rb") as lines:
            lines.seek(self._num_read)
            new = lines.read()
        new = new[: new.rfind(b"\n") + 1]
        self._num_read += len(new)
        found = Counter(new.decode().split())
        self.counts += found
        return set(found)


async def differences(dsn: str, produced: Path) -> list[str]:
    """Return a line for each request that is billed for more tokens than were made, or whose tokens are not billed.

    produced: the file in which engines note tokens; those that agents ask for to try an engine are nobody's.
    """
    made = TokensMade(produced)
    return await differences_of(dsn, made, await asyncio.to_thread(made.read))


async def differences_of(
    dsn: str, made: TokensMade, asked: Iterable[str], since: datetime.datetime | None = None
) -> list[str]:
    """Return a line for each request whose counts differ, among those asked for and those with an attempt since
    `since`.
    """
    conn = await asyncpg.connect(dsn)
    try:
        found = await conn.fetch(_ATTEMPTS, since)
    finally:
        await conn.close()
    rows: Counter[str] = Counter()
    for row in found:
        rows[row["request_id"]] += row["completion_tokens"] + row["discarded_tokens"]
    wrong = [f"{id}: {num} billed, {made.counts[id]} made" for id, num in rows.items() if num > made.counts[id]]
    return wrong + [
        f"{id}: {made.counts[id]} made, billed to nobody" for id in asked if id not in rows and not id.startswith(PROBE)
    ]
