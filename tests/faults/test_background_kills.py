"""Gateways and engines are killed while they run background responses: no event that clients follow is lost, doubled or
renumbered, and every response reaches its end."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import asyncpg
import httpx
import msgspec
import pytest

from tests.faults.processes import Engine, Gateway
from tests.faults.site import Site
from tests.gateway.openai.responses.laws import check, read
from tests.patience import PATIENCE_S
from tests.seeds import seeds

NUM_KILLS, FULL_KILLS = 1, 1000
NUM_SITES, FULL_SITES = 1, 8
"""Sites in which kills happen side by side: most of a kill is waiting for the lease of the dead to end."""
AT_ONCE = 6
END_S = 60.0
READY_S = 15.0


@pytest.fixture
def sites(open_folder: Path, full: bool) -> Iterator[list[Site]]:
    with ExitStack() as stack:
        sites = []
        for number in range(FULL_SITES if full else NUM_SITES):
            folder = open_folder / f"background-{number}"
            folder.mkdir(mode=0o711)
            site = Site(folder, num_gateways=2)
            stack.callback(site.close)
            asyncio.run(_store(site))
            site.start()
            sites.append(site)
        yield sites


async def _store(site: Site) -> None:
    conn = await asyncpg.connect(site.postgres.dsn)
    await conn.execute("UPDATE projects SET store_days = 1 WHERE id = $1", site.key.project_id)
    await conn.close()


class Follower:
    """A client that follows one response's events, and reconnects to another gateway when its stream breaks."""

    def __init__(self, site: Site, response_id: str) -> None:
        self.events: list[str] = []
        self.response_id = response_id
        self.longest_wait_s = 0.0
        self._site = site

    async def follow(self) -> None:
        is_over, broken_at_s = False, None
        while not is_over:
            for gateway in (1, 0):
                try:
                    url = f"{self._site.gateways[gateway].url}/v1/responses/{self.response_id}"
                    params = {"stream": "true"}
                    if self.events:
                        params["starting_after"] = str(len(self.events) - 1)
                    async with (
                        httpx.AsyncClient(headers=self._site.key.headers, timeout=PATIENCE_S) as client,
                        client.stream("GET", url, params=params) as reply,
                    ):
                        if broken_at_s is not None:
                            self.longest_wait_s = max(self.longest_wait_s, time.monotonic() - broken_at_s)
                            broken_at_s = None
                        is_over = await self._read(reply)
                except httpx.TransportError:
                    broken_at_s = broken_at_s or time.monotonic()
                if is_over:
                    return

    async def _read(self, reply: httpx.Response) -> bool:
        assert reply.status_code == 200, await reply.aread()
        rest = ""
        async for text in reply.aiter_text():
            *parts, rest = (rest + text).split("\n\n")
            for part in parts:
                if part == "data: [DONE]":
                    return True
                if not part.startswith(":"):
                    self.events.append(part)
        return False


async def kill_once(site: Site, rng: random.Random, victim: Engine | Gateway) -> None:
    followers = []
    body = {"model": "tiny", "input": "hello there", "background": True, "store": True}
    async with httpx.AsyncClient(headers=site.key.headers, timeout=PATIENCE_S) as client:
        for _ in range(AT_ONCE):
            url = f"{site.gateways[rng.randrange(2)].url}/v1/responses"
            reply = await client.post(url, json=body | {"max_output_tokens": rng.randrange(1, 300)})
            assert reply.status_code == 200, reply.text
            followers.append(Follower(site, reply.json()["id"]))
    following = asyncio.gather(*(follower.follow() for follower in followers))
    await asyncio.sleep(rng.uniform(0, 2))
    await asyncio.to_thread(victim.kill)
    victim.start()
    async with asyncio.timeout(END_S):
        await following
    gateway = site.gateways[rng.randrange(2)]
    await asyncio.to_thread(gateway.wait_ready)
    async with httpx.AsyncClient(headers=site.key.headers, timeout=PATIENCE_S) as client:
        for follower in followers:
            assert follower.longest_wait_s < READY_S
            url = f"{gateway.url}/v1/responses/{follower.response_id}"
            seen = "".join(f"{event}\n\n" for event in follower.events) + "data: [DONE]\n\n"
            assert (await client.get(url, params={"stream": "true"})).text == seen
            response = check(read(seen), strictly=False)
            assert response["status"] in ("completed", "incomplete", "failed")
            assert msgspec.json.decode((await client.get(url)).content) == response


async def test_no_event_is_lost_or_renumbered_whoever_is_killed(sites: list[Site], full: bool) -> None:
    numbers = seeds(NUM_KILLS, FULL_KILLS, full=full)

    async def kill_at(site: Site) -> None:
        for number in numbers:  # each site takes the next
            victim = (*site.gateways, site.engine)[number % 3]
            await kill_once(site, random.Random(number), victim)

    async with asyncio.TaskGroup() as group:
        for site in sites:
            group.create_task(kill_at(site))
