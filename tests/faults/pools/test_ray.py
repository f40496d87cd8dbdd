"""Ray's head and nodes are lost under load: no request fails when the head is lost; when a node is lost, only those
fail that ran there.

Its autoscaler brings a node for a replica that has none, and takes it when the replica is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from engine.curve import Peer
from gateway.db.pool import Database
from gateway.db.pools.replicas import ReplicaRow
from gateway.settings import load_settings
from gateway.support.host import host_keys
from tests.faults.pools.load import PAUSE_S, check_billed, wait_for_answers
from tests.faults.pools.world import World, asked_of_fake
from tests.gateway.agent.ray.nodes import AutoscaledNodes, RayHost, needs_ray, ray_nodes
from tests.gateway.agent.site import calling
from tests.installation.gateway_process import GatewayProcess
from tests.installation.tenants import make_key
from tests.installation.waiting import until
from tests.patience import PATIENCE_S

pytestmark = needs_ray

MODEL = "tiny"
NUM_CLIENTS = 8
MAX_TOKENS = 300
"""The most tokens of a request: a second and a half of a fake engine, so that some always run."""

NUM_ANSWERS, NUM_ANSWERS_FULL = 30, 300
ELSEWHERE_S = 20.0


@pytest.fixture
def host(dsn: str, database: Database) -> Iterator[RayHost]:
    folder = Path(tempfile.mkdtemp(prefix="lk-"))
    with ray_nodes("a", "b", num_cpus=4) as nodes:
        host = RayHost(folder, dsn, database, nodes)
        yield host
        host.close()
    shutil.rmtree(folder)


async def is_answered(asking: Awaitable[str]) -> bool:
    return await asking == "answered"


@asynccontextmanager
async def loaded(host: RayHost, dsn: str, folder: Path) -> AsyncIterator[World]:
    """Run clients that send requests to a gateway of the agent's host until the context is left."""
    variables = {name: value for name, value in host.variables.items() if name.startswith("LORIKEET_")}
    settings = load_settings(variables | {"LORIKEET_MODEL": str(folder), "LORIKEET_MODEL_NAME": MODEL})
    gateway = GatewayProcess(settings, dsn, 0)
    world, stop = World(dsn, await make_key(dsn, "acme"), [gateway]), asyncio.Event()

    async def client(number: int) -> None:
        rng = random.Random(number)
        while not stop.is_set():
            prompt = [rng.randrange(3, 250) for _ in range(11)]
            num_tokens = rng.randrange(4, MAX_TOKENS)
            await world.ask(http, asked_of_fake(MODEL, 0, prompt, num_tokens, stream=rng.random() < 0.5), gateway)
            await asyncio.sleep(PAUSE_S)

    try:
        await asyncio.to_thread(gateway.start)
        await asyncio.to_thread(gateway.wait_ready)
        async with httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as http:
            ready = asked_of_fake(MODEL, 0, [5, 6, 7], 1, stream=False)
            await until(lambda: is_answered(world.ask(http, ready, gateway)))
            world.outcomes.clear()
            clients = [asyncio.create_task(client(number)) for number in range(NUM_CLIENTS)]
            try:
                yield world
            finally:
                stop.set()
                await asyncio.gather(*clients)
    finally:
        gateway.close()


async def test_the_head_is_killed_and_started_again_and_no_request_fails(host: RayHost, dsn: str, full: bool) -> None:
    folder, num_answers = host.model(), NUM_ANSWERS_FULL if full else NUM_ANSWERS
    pool = await host.pool(folder, num_replicas=2)
    host.agent()
    before = await host.ready(2)
    pids = host.pids()
    async with loaded(host, dsn, folder) as world:
        for _ in range(3 if full else 1):
            await wait_for_answers(world, num_answers)
            await asyncio.to_thread(host.nodes.kill_head)
            await wait_for_answers(world, num_answers)
            await asyncio.to_thread(host.nodes.start_head)
            for name in ("a", "b"):
                await asyncio.to_thread(host.nodes.rejoin, name)
            await wait_for_answers(world, num_answers)
        assert (await host.ready(2), host.pids()) == (before, pids), "they are the same engines"
        await host.scale(pool, 3)
        await host.ready(3)
        await wait_for_answers(world, num_answers)
    print(dict(world.outcomes))
    assert set(world.outcomes) == {"answered"}, world.outcomes
    await check_billed(world)


async def test_a_node_is_killed_and_only_what_had_begun_there_fails(host: RayHost, dsn: str, full: bool) -> None:
    folder, num_answers = host.model(), NUM_ANSWERS_FULL if full else NUM_ANSWERS
    await host.pool(folder, num_replicas=2)
    host.agent()
    await host.ready(2)
    keys = host_keys(host.data_dir)
    async with loaded(host, dsn, folder) as world:
        for victim, other in [("a", "b"), ("b", "a")] * (5 if full else 1):
            rows = await host.ready(2)
            await wait_for_answers(world, num_answers)
            [kept] = [row for row in rows if row.address in host.addresses_on(other)]
            assert kept.public_key is not None
            async with calling(host, kept, Peer(keys, kept.public_key)) as engine:
                stream = engine.call(num_tokens=4000)  # twenty seconds
                for pid in host.pids_on(victim):
                    host.kill(pid)
                await asyncio.to_thread(host.nodes.kill, victim)
                killed_s = time.monotonic()
                await asyncio.to_thread(host.nodes.await_loss)
                noticed_s = time.monotonic()

                where = {victim: 0, other: 2}
                await until(lambda where=where: are_on(host, where), host.log)
                took_s = time.monotonic() - noticed_s
                print(f"noticed after {noticed_s - killed_s:.1f} s, elsewhere {took_s:.1f} s later")
                assert took_s < ELSEWHERE_S
                final = await stream
                assert final is not None and final.usage.completion_tokens == 4000
            await asyncio.to_thread(host.nodes.rejoin, victim)
            await spread(host)
    print(dict(world.outcomes))
    assert set(world.outcomes) <= {"answered", "ended after its text had begun"}, world.outcomes
    await check_billed(world)


async def spread(host: RayHost) -> None:
    """Restore the placement of one replica on each node."""
    while not await are_on(host, {"a": 1, "b": 1}):
        row = (await host.ready(2))[0]
        await host.replace(row)

        async def is_replaced(row: ReplicaRow = row) -> bool:
            return len(await host.replicas()) == 2 and row.id not in {each.id for each in await host.replicas("ready")}

        await until(is_replaced, host.log)


async def are_on(host: RayHost, numbers: dict[str, int]) -> bool:
    """Tell whether all replicas are ready, with these numbers of them on the nodes."""
    states = [row.state for row in await host.replicas()]
    found = {name: len(host.pids_on(name)) for name in numbers}
    return found == numbers and states == ["ready"] * sum(numbers.values())


async def has_nodes(nodes: AutoscaledNodes, number: int) -> bool:
    return await asyncio.to_thread(nodes.count) == number


async def test_rays_autoscaler_brings_a_node_for_a_replica_and_takes_it_afterwards(
    dsn: str, database: Database
) -> None:
    folder = Path(tempfile.mkdtemp(prefix="lk-"))
    nodes = AutoscaledNodes(folder / "nodes", num_cpus=2, max_nodes=3)
    host = RayHost(folder, dsn, database, nodes)
    try:
        pool = await host.pool(host.model(), num_replicas=0)
        host.agent()
        await until(lambda: has_nodes(nodes, 1))
        await host.scale(pool, 3)  # of one CPU each, where a node has two
        rows = await host.ready(3)
        assert {row.generation for row in rows} == {1} and await has_nodes(nodes, 2)
        await host.scale(pool, 0)
        await host.ready(0)
        await until(lambda: has_nodes(nodes, 1), host.log)
    finally:
        host.close()
        nodes.close()
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
