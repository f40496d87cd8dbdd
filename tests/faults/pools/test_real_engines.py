"""Two bases over real engines of tiny random models: each answer is its own model's while pools are scaled, get other
settings and change their base under load, and no request fails.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import msgspec
import pytest

from adapters.store import AdapterStore
from engine.config import model_digest
from gateway.db.adapters.adapter_versions import put_adapter
from gateway.db.pool import Database
from gateway.db.pools.pools import PoolRow
from gateway.settings import load_settings
from tests.faults.pools.load import check_billed, wait_for_answers
from tests.faults.pools.tiny_bases import RANK, ExpectedAnswers, expected, make_adapter, make_base
from tests.faults.pools.world import BASES, CheckedRequest, World
from tests.gateway.agent.site import Host
from tests.installation.gateway_process import GatewayProcess
from tests.installation.tenants import Key, make_key
from tests.patience import PATIENCE_S

SMALL, LARGE = BASES
OTHER = "other"
"""The folder of the base model that the pool `LARGE` changes to."""

NUM_ADAPTERS, NUM_ADAPTERS_FULL = 2, 8
"""The adapters of each base, in the usual size and with --full."""

NUM_PROMPTS, NUM_PROMPTS_FULL = 8, 60
MAX_TOKENS = 8
NUM_CLIENTS = 6
PAUSE_S = 0.2
"""The pause of each client between two requests, but none with --full: engines that compute share a small machine with
other tests."""

NUM_ROUNDS_FULL = 3
NUM_ANSWERS, NUM_ANSWERS_FULL = 24, 500
"""Answers in each state of the pools."""


class Models(msgspec.Struct):
    """All bases and adapters, with the answers of each."""

    folders: dict[str, Path]
    adapters: dict[str, list[str]]
    """The digests of the adapters of each pool's base."""
    expected: ExpectedAnswers


class Bases(msgspec.Struct):
    """The base behind each pool by now; two while it changes: the former and the next one."""

    of_pool: dict[str, list[str]]

    def random_request(self, models: Models, rng: random.Random) -> CheckedRequest:
        """Return a request for one of the pools or an adapter of its base."""
        pool, prompt = rng.choice(BASES), rng.randrange(len(models.expected.prompts))
        number = rng.randrange(len(models.adapters[pool]) + 1)
        digest = models.adapters[pool][number - 1] if number else ""
        return CheckedRequest(
            f"{pool}:{_name(pool, number)}" if number else pool,
            models.expected.prompts[prompt],
            MAX_TOKENS,
            rng.random() < 0.3,
            [models.expected.of_base[base][digest][prompt] for base in self.of_pool[pool]],
        )


def _name(pool: str, number: int) -> str:
    return f"{pool}-{number}"


@pytest.fixture
def host(dsn: str, database: Database) -> Iterator[Host]:
    folder = Path(tempfile.mkdtemp(prefix="lk-"))  # a short path, for the sockets below it
    host = Host(folder, dsn, database)
    host.variables |= {"LORIKEET_DTYPE": "float32", "LORIKEET_QUANTIZATION": "none", "LORIKEET_MAX_MODEL_LEN": "256"}
    yield host
    host.close()
    shutil.rmtree(folder)


@pytest.fixture
def models(host: Host, tmp_path: Path, full: bool) -> Models:
    folders = {name: make_base(tmp_path / name, seed) for seed, name in enumerate((*BASES, OTHER))}
    store = AdapterStore(host.data_dir / "adapters")
    num_adapters = NUM_ADAPTERS_FULL if full else NUM_ADAPTERS
    digests = {
        pool: [
            store.add(make_adapter(tmp_path / _name(pool, n), seed=100 * at + n)) for n in range(1, num_adapters + 1)
        ]
        for at, pool in enumerate(BASES, start=1)
    }
    rng = random.Random(0)
    prompts = [
        [rng.randrange(3, 250) for _ in range(rng.choice((11, 23, 61)))]
        for _ in range(NUM_PROMPTS_FULL if full else NUM_PROMPTS)
    ]
    every = ["", *digests[SMALL], *digests[LARGE]]
    answers_of_all = expected(folders, every, host.data_dir / "adapters", prompts, MAX_TOKENS)
    assert len(answers_of_all.prompts) >= 4
    return Models(folders, digests, answers_of_all)


async def _rows(host: Host, dsn: str, models: Models, num_replicas: int) -> tuple[Key, dict[str, PoolRow]]:
    """Make both pools, and the adapters of a tenant; return the tenant's key."""
    key = await make_key(dsn, "acme")
    pools = {name: await host.pool(models.folders[name], num_replicas, name) for name in BASES}
    async with host.database.acquire() as conn:
        for pool, digests in models.adapters.items():
            base_digest = model_digest(models.folders[pool])
            for number, digest in enumerate(digests, start=1):
                name = _name(pool, number)
                await put_adapter(
                    conn, key.project_id, name, base_digest=base_digest, digest=digest, rank=RANK, size_bytes=1
                )
    return key, pools


@asynccontextmanager
async def gateways_of(host: Host, dsn: str, models: Models) -> AsyncIterator[list[GatewayProcess]]:
    """Run two gateways until the context is left."""
    variables = {name: value for name, value in host.variables.items() if name.startswith("LORIKEET_")}
    variables |= {"LORIKEET_MODEL": str(models.folders[SMALL]), "LORIKEET_MODEL_NAME": SMALL}
    settings = load_settings(variables | {"LORIKEET_DRAIN_SECONDS": "10"})
    gateways = [GatewayProcess(settings, dsn, number) for number in range(2)]
    try:
        for gateway in gateways:
            await asyncio.to_thread(gateway.start)
        for gateway in gateways:
            await asyncio.to_thread(gateway.wait_ready)
        yield gateways
    finally:
        for gateway in gateways:
            gateway.close()


@asynccontextmanager
async def load(world: World, models: Models, bases: Bases, pause_s: float) -> AsyncIterator[httpx.AsyncClient]:
    """Run clients that send requests for all models to both gateways until the context is left."""
    stop = asyncio.Event()

    async def client(number: int) -> None:
        rng = random.Random(number)
        while not stop.is_set():
            await world.ask(http, bases.random_request(models, rng), rng.choice(world.gateways))
            await asyncio.sleep(pause_s)

    async with httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as http:
        clients = [asyncio.create_task(client(number)) for number in range(NUM_CLIENTS)]
        try:
            yield http
        finally:
            stop.set()
            await asyncio.gather(*clients)


class Site(msgspec.Struct):
    """The running processes, with clients that send requests to them."""

    host: Host
    world: World
    models: Models
    bases: Bases
    http: httpx.AsyncClient
    num_answers: int
    """Answers that clients get in each state of the pools."""
    num_added: int
    """Replicas by which a pool grows."""

    async def scale_and_set(self, pool: PoolRow, num_replicas: int) -> None:
        """Scale a pool up and down again, and change a setting of its engines."""
        for count in (num_replicas + self.num_added, num_replicas):
            await self.host.scale(pool, count)
            await self.host.ready(count, name=pool.name)
            await wait_for_answers(self.world, self.num_answers)
        folder = self.models.folders[self.bases.of_pool[pool.name][0]]
        revision = await self.host.want(pool, str(folder), max_num_seqs="4")
        await self.host.ready(num_replicas, revision, name=pool.name)
        await wait_for_answers(self.world, self.num_answers)

    async def move(self, pool: PoolRow, num_replicas: int, other: str) -> None:
        """Change a pool to another base; its adapters go with it, and answer by that base from then on."""
        bases = self.bases.of_pool
        (former,) = bases[pool.name]
        bases[pool.name] = [former, other]
        revision = await self.host.want(pool, str(self.models.folders[other]))
        await self.host.ready(num_replicas, revision, name=pool.name)
        for gateway in self.world.gateways:
            await self._follows(gateway, pool.name, former, other)
        bases[pool.name] = [other]
        await wait_for_answers(self.world, self.num_answers)

    async def _follows(self, gateway: GatewayProcess, pool: str, former: str, other: str) -> None:
        """Wait until a gateway answers for a pool by its new base."""
        models = self.models.expected
        both = [models.of_base[base][""][0] for base in (former, other)]
        asked = CheckedRequest(pool, models.prompts[0], MAX_TOKENS, False, both)
        alone = World(self.world.dsn, self.world.key, [gateway])
        async with asyncio.timeout(PATIENCE_S):
            while not alone.by_answer[pool, 1]:
                await alone.ask(self.http, asked, gateway)


async def test_each_answer_is_its_own_models_while_pools_change(
    host: Host, models: Models, dsn: str, full: bool
) -> None:
    num_replicas = 2 if full else 1
    key, pools = await _rows(host, dsn, models, num_replicas)
    host.real_agent()
    for name in BASES:
        await host.ready(num_replicas, name=name)
    bases = Bases({SMALL: [SMALL], LARGE: [LARGE]})
    async with gateways_of(host, dsn, models) as gateways:
        world = World(dsn, key, gateways)
        async with load(world, models, bases, 0.0 if full else PAUSE_S) as http:
            site = Site(host, world, models, bases, http, NUM_ANSWERS_FULL if full else NUM_ANSWERS, 2 if full else 1)
            await wait_for_answers(world, site.num_answers)
            for _ in range(NUM_ROUNDS_FULL if full else 1):
                await asyncio.gather(
                    site.scale_and_set(pools[SMALL], num_replicas), site.move(pools[LARGE], num_replicas, OTHER)
                )
                if full:
                    await site.move(pools[LARGE], num_replicas, LARGE)
        await check_billed(world)
    print(f"{dict(world.outcomes)}, {len(world.by_answer)} models and bases answered")
    assert set(world.outcomes) == {"answered"}, world.outcomes
    asked = {f"{pool}:{_name(pool, n)}" for pool in BASES for n in range(1, len(models.adapters[pool]) + 1)}
    assert {model for model, _ in world.by_answer} == asked | set(BASES)
