"""A pool under load is scaled, changed, and changed to something broken; its agent and gateways are restarted, killed
and frozen: no request fails except those that had begun on a killed engine, and each answer is billed once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import httpx
import pytest

from gateway.db.pool import Database
from gateway.db.pools.pools import PoolRow
from gateway.db.pools.replicas import replace_replicas
from gateway.settings import load_settings
from tests.faults.pools.load import check_billed
from tests.faults.pools.world import World, asked_of_fake
from tests.gateway.agent.site import Host
from tests.installation.gateway_process import GatewayProcess
from tests.installation.processes import ChildProcess
from tests.installation.tenants import make_key
from tests.installation.waiting import until
from tests.patience import PATIENCE_S

POOL = "tiny"
NUM_CLIENTS = 6
PAUSE_S = 0.2
"""The seconds between two requests of a client: all engines have work, and new ones have time to start."""


class Installation:
    """One host with its agent, a pool of fake engines, and two gateways."""

    def __init__(self, host: Host, pool: PoolRow, agent: ChildProcess, world: World) -> None:
        self.host = host
        self.pool = pool
        self.agent = agent
        self.world = world

    async def wait_for_answers(self, count: int) -> None:
        """Wait until `count` more requests are answered."""
        target = self.world.outcomes["answered"] + count

        async def have_come() -> bool:
            return self.world.outcomes["answered"] >= target

        await until(have_come, lambda: f"{dict(self.world.outcomes)} {self.host.log()}")


@pytest.fixture
async def installation(dsn: str, database: Database, tmp_path: Path) -> AsyncIterator[Installation]:
    host = Host(tmp_path / "host", dsn, database)
    folder = host.model()
    pool = await host.pool(folder, num_replicas=1)
    agent = host.agent()
    key = await make_key(dsn, "acme")
    settings = load_settings(
        {name: value for name, value in host.variables.items() if name.startswith("LORIKEET_")}
        | {"LORIKEET_MODEL": str(folder), "LORIKEET_MODEL_NAME": POOL, "LORIKEET_DRAIN_SECONDS": "10"}
    )
    gateways = [GatewayProcess(settings, dsn, number) for number in range(2)]
    try:
        await host.ready(1)
        for gateway in gateways:
            await asyncio.to_thread(gateway.start)
        for gateway in gateways:
            await asyncio.to_thread(gateway.wait_ready)
        yield Installation(host, pool, agent, World(dsn, key, gateways))
    finally:
        for gateway in gateways:
            gateway.close()
        host.close()


async def _has_another(host: Host, victim: int) -> bool:
    """Tell whether a new engine runs in place of a killed one.

    victim: the process id of the killed engine.
    """
    pids = host.pids()
    return len(pids) == 2 and victim not in pids


@asynccontextmanager
async def load(world: World) -> AsyncIterator[None]:
    """Run clients that send one request after the other, each over a new connection, until the context is left."""
    stop = asyncio.Event()

    async def client(number: int) -> None:
        rng = random.Random(number)
        while not stop.is_set():
            prompt = [rng.randrange(3, 250) for _ in range(rng.choice((11, 23, 61)))]
            asked = asked_of_fake(POOL, 0, prompt, rng.randrange(4, 24), stream=rng.random() < 0.3)
            await world.ask(http, asked, rng.choice(world.gateways))
            await asyncio.sleep(PAUSE_S)

    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False, limits=limits) as http:
        clients = [asyncio.create_task(client(number)) for number in range(NUM_CLIENTS)]
        try:
            yield
        finally:
            stop.set()
            await asyncio.gather(*clients)


async def test_changes_under_load_cost_no_request(installation: Installation) -> None:
    host, pool, world = installation.host, installation.pool, installation.world
    async with load(world):
        await installation.wait_for_answers(20)
        await host.scale(pool, 3)
        await host.ready(3)
        await installation.wait_for_answers(40)
        revision = await host.want(pool, str(host.model()), max_num_seqs="16")
        await host.ready(3, revision)
        await installation.wait_for_answers(40)
        broken = await host.want(pool, str(host.model("broken-model", broken="it cannot run")))

        async def is_back() -> bool:
            served = await host.served()
            return served is not None and served.row.wanted_revision == revision

        await until(is_back, host.log)
        assert (await host.ready(3, revision))[0].revision == revision
        async with host.database.acquire() as conn:
            why = await conn.fetchval("SELECT why FROM pool_revisions WHERE revision = $1", broken)
            await replace_replicas(conn, [(await host.replicas())[0].id])
        assert "it cannot run" in why
        await installation.wait_for_answers(40)
        await host.scale(pool, 1)
        await host.ready(1)
        await installation.wait_for_answers(40)
    assert set(world.outcomes) == {"answered"}, world.outcomes
    await check_billed(world)


async def test_restarts_of_agents_and_gateways_cost_no_request(installation: Installation) -> None:
    host, world = installation.host, installation.world
    async with load(world):
        await installation.wait_for_answers(20)
        before = host.pids()
        await asyncio.to_thread(installation.agent.kill)
        await installation.wait_for_answers(40)
        successor = host.agent()
        await until(lambda: host.has_generation(2), host.log)
        await installation.wait_for_answers(40)
        await asyncio.to_thread(successor.terminate)
        await installation.wait_for_answers(40)
        host.agent()
        await until(lambda: host.has_generation(3), host.log)
        assert host.pids() == before, "the engine served on, and was adopted"
        for gateway in world.gateways:
            await asyncio.to_thread(gateway.terminate)
            await asyncio.to_thread(gateway.start)
            await asyncio.to_thread(gateway.wait_ready)
            await installation.wait_for_answers(40)
    assert set(world.outcomes) == {"answered"}, world.outcomes
    await check_billed(world)


async def test_a_frozen_agent_and_killed_engines_cost_what_had_begun_alone(
    installation: Installation, full: bool
) -> None:
    host, pool, world = installation.host, installation.pool, installation.world
    rng = random.Random(0)
    async with load(world):
        await host.scale(pool, 2)
        await host.ready(2)
        await installation.wait_for_answers(20)
        for _ in range(100 if full else 3):
            with installation.agent.frozen():
                victim = rng.choice(host.pids())
                host.kill(victim)
                await installation.wait_for_answers(40)
            await until(partial(_has_another, host, victim), host.log)
            await host.ready(2)
            await installation.wait_for_answers(20)
    assert set(world.outcomes) <= {"answered", "ended after its text had begun"}, world.outcomes
    await check_billed(world)
