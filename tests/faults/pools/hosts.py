"""Hosts with addresses of their own: two with agents and engines, two with a gateway each, and a PostgreSQL for all.

A pool has a replica on each of the first two. Clients ask both gateways all the time, and their answers are noted with
the time; so are the engines of each replica that live, and the replicas that each gateway has in its picture.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import httpx
import msgspec

from engine.config import model_digest
from gateway.db.adapters import adapter_versions
from gateway.db.migrate import migrate
from gateway.db.pool import Database
from gateway.db.pools.hosts import list_hosts
from gateway.db.pools.replicas import replace_replicas
from gateway.postgres.placement import home_of
from gateway.settings import Settings
from tests.faults.pools.load import TokensMade, check_billed, differences, differences_of
from tests.faults.pools.stations import HUB, Stations
from tests.faults.pools.world import NUM_ADAPTERS, World, asked_of_fake, name_of, rotation
from tests.faults.processes import Postgres
from tests.gateway.agent.agent_main import PRODUCED_VARIABLE
from tests.gateway.agent.site import Host
from tests.installation.gateway_process import GatewayProcess
from tests.installation.processes import ChildProcess
from tests.installation.tenants import make_key
from tests.installation.waiting import until
from tests.patience import PATIENCE_S

BASE = "small"
ENGINE_HOSTS, GATEWAY_HOSTS = ("a", "b"), ("g", "h")
CLIENTS_PER_GATEWAY = 3
PAUSE_S, LOOK_S = 0.1, 0.4
REQUEST_S = 60.0
"""Seconds after which a client gives up its request; no answer should take so long."""
AGAIN = datetime.timedelta(minutes=2)
"""The time span, before the last check of the ledger, whose attempts are checked once more."""


class Reply(msgspec.Struct, frozen=True):
    """The outcome of a request to one gateway, with its times by the monotonic clock."""

    gateway: int
    begun_s: float
    ended_s: float
    outcome: str


class RoutableReplicas(msgspec.Struct, frozen=True):
    """The number of replicas to which a gateway would send requests, at one time of the monotonic clock."""

    gateway: int
    at_s: float
    num_ready: int


class Hosts:
    """All hosts, and the recorded observations of them."""

    def __init__(self, folder: Path, stations: Stations, postgres: Postgres, database: Database, world: World) -> None:
        self.stations = stations
        self.postgres = postgres
        self.database = database
        self.world = world
        self.replies: list[Reply] = []
        self.pictures: list[RoutableReplicas] = []
        self.starts: dict[tuple[str, int], set[tuple[str, int]]] = {}
        """The host and the process of each start of a replica that was seen; more than one is a twin."""
        self.twins: list[str] = []
        self.answered: dict[str, int] = {}
        """Completion tokens of each answer that the ledger was checked for, by request."""
        self.by_name: dict[str, Host] = {}
        self.agents: dict[str, ChildProcess] = {}
        self._produced = folder / "produced"
        self._made = TokensMade(self._produced)
        self._unchecked: set[str] = set()
        """Requests whose tokens were noted since the ledger was checked."""
        self._checked_at: datetime.datetime | None = None
        self._goes_on = asyncio.Event()
        self._goes_on.set()
        self._num_asked = 0

    @property
    def gateways(self) -> list[GatewayProcess]:
        return self.world.gateways

    def start_agent(self, name: str) -> None:
        self.agents[name] = self.by_name[name].agent()

    def check(self) -> None:
        """Check that no replica has been run twice.

        Raises AssertionError: when one has.
        """
        twice = {start: found for start, found in self.starts.items() if len(found) > 1}
        assert not twice and not self.twins, (twice, self.twins)

    async def check_ledger(self) -> None:
        """Check the new rows of the ledger against what clients and engines have counted, while no request runs.

        Raises AssertionError: when they differ.
        """

        async def is_idle() -> bool:
            return self._num_asked == 0

        async def different() -> list[str]:
            self._unchecked |= await asyncio.to_thread(self._made.read)
            since = None if self._checked_at is None else self._checked_at - AGAIN
            return await differences_of(self.postgres.dsn, self._made, self._unchecked, since)

        async def adds_up() -> bool:
            return not await different()

        self._goes_on.clear()
        try:
            await until(is_idle)
            begun_at = datetime.datetime.now(datetime.UTC)
            await check_billed(self.world, None if self._checked_at is None else self._checked_at - AGAIN)
            with contextlib.suppress(AssertionError):
                await until(adds_up)
            found = await different()
            assert not found, found
            self.answered |= self.world.answered
            self.world.answered.clear()
            self._unchecked.clear()
            self._checked_at = begun_at
        finally:
            self._goes_on.set()

    async def check_whole_ledger(self) -> None:
        """Check the whole ledger against what clients and engines have counted, once no request runs any more.

        Raises AssertionError: when they differ.
        """
        self.world.answered.update(self.answered)
        await check_billed(self.world)
        found = await differences(self.postgres.dsn, self._produced)
        assert not found, found

    async def settled(self) -> None:
        """Wait until agents live, each host runs one replica, and both gateways have both in their pictures."""
        asked: set[str] = set()

        async def is_whole() -> bool:
            async with self.database.acquire() as conn:
                hosts = [each for each in await list_hosts(conn) if each.num_processors]
            rows = await self.by_name["a"].replicas(name=BASE)
            ready = [row for row in rows if row.state == "ready"]
            if len(rows) == len(ready) == 2 and ready[0].host_id == ready[1].host_id and ready[0].id not in asked:
                asked.add(ready[0].id)  # both on one host: the other one has room again
                async with self.database.acquire() as conn:
                    await replace_replicas(conn, [ready[0].id])
            seen = [each.num_ready for each in self._last_pictures()]
            spread = {row.host_id for row in ready}
            is_spread = len(rows) == len(spread) == 2 and seen == [2, 2] and all(each.is_alive for each in hosts)
            return is_spread and [len(host.pids()) for host in self.by_name.values()] == [1, 1]

        await until(is_whole, self._state, pause_s=0.1)

    def _last_pictures(self) -> list[RoutableReplicas]:
        last = {each.gateway: each for each in self.pictures[-20:]}
        return [last[number] for number in sorted(last)]

    def _state(self) -> str:
        logs = {name: host.log()[-1500:] for name, host in self.by_name.items()}
        logs |= {each.log.parent.name: each.log.read_text(errors="replace")[-1500:] for each in self.gateways}
        return f"never whole again: {self._last_pictures()}\n" + "\n".join(f"--- {n}\n{t}" for n, t in logs.items())

    @asynccontextmanager
    async def watched(self, seed: int) -> AsyncIterator[None]:
        """Ask both gateways, and look at engines and pictures, until the context is left."""
        stop = asyncio.Event()

        async def client(number: int) -> None:
            rng, gateway = random.Random(f"{seed}-{number}"), number % len(self.gateways)
            while not stop.is_set():
                await self._goes_on.wait()
                base_or_adapter = rng.randrange(NUM_ADAPTERS + 1)
                model = f"{BASE}:{name_of(BASE, base_or_adapter)}" if base_or_adapter else BASE
                prompt = [rng.randrange(3, 250) for _ in range(rng.choice((11, 23, 61)))]
                asked = asked_of_fake(
                    model,
                    rotation(BASE, base_or_adapter),
                    prompt,
                    rng.randrange(4, 60),
                    stream=rng.random() < 0.5,
                )
                begun_s = time.monotonic()
                self._num_asked += 1
                try:
                    outcome = await self.world.ask(http, asked, self.gateways[gateway])
                finally:
                    self._num_asked -= 1
                self.replies.append(Reply(gateway, begun_s, time.monotonic(), outcome))
                await asyncio.sleep(PAUSE_S)

        async def look_at_engines() -> None:
            while not stop.is_set():
                await asyncio.to_thread(self._note_engines)
                await asyncio.sleep(LOOK_S)

        async def look_at_pictures(number: int) -> None:
            url = f"{self.gateways[number].operator_url}/metrics"
            while not stop.is_set():
                begun_s = time.monotonic()
                with contextlib.suppress(httpx.HTTPError):
                    text = (await metrics.get(url)).text
                    self.pictures.append(RoutableReplicas(number, begun_s, _ready_in(text)))
                await asyncio.sleep(LOOK_S)

        limits = httpx.Limits(max_connections=None)
        async with (
            httpx.AsyncClient(timeout=REQUEST_S, trust_env=False, limits=limits) as http,
            httpx.AsyncClient(timeout=2.0, trust_env=False) as metrics,
        ):
            numbers = range(len(self.gateways))
            works = [client(number) for number in range(CLIENTS_PER_GATEWAY * len(self.gateways))]
            works += [look_at_engines(), *(look_at_pictures(number) for number in numbers)]
            tasks = [asyncio.create_task(work) for work in works]
            try:
                yield
            finally:
                stop.set()
                for result in await asyncio.gather(*tasks, return_exceptions=True):
                    if isinstance(result, Exception):
                        raise result

    def _note_engines(self) -> None:
        """Record the process of each start of each replica, found by the lock file that it holds open."""
        found: Counter[str] = Counter()
        for name, host in self.by_name.items():
            for pid in host.pids():
                lock = _lock_of(pid)
                if lock is None:
                    continue
                found[lock.stem] += 1
                with contextlib.suppress(OSError, ValueError):
                    note, number = lock.read_text().splitlines()[:2]
                    if int(number) == pid:
                        start = (lock.stem, json.loads(note)["generation"])
                        self.starts.setdefault(start, set()).add((name, pid))
        self.twins += [f"{replica}: {count} processes" for replica, count in found.items() if count > 1]


def _lock_of(pid: int) -> Path | None:
    """Return the path of the lock file that an engine holds open; None where the process has ended."""
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = descriptor.readlink()
                if target.suffix == ".lock":
                    return target
    return None


def _ready_in(text: str) -> int:
    lines = [line for line in text.splitlines() if line.startswith("lorikeet_pool_replicas_ready{")]
    return int(sum(float(line.rpartition(" ")[2]) for line in lines))


@contextmanager
def _postgres(folder: Path, stations: Stations) -> Iterator[tuple[Postgres, str]]:
    """Give a server at the hub, and the connection string of the other stations."""
    folder.mkdir()
    folder.chmod(0o711)
    postgres = Postgres(folder, settings={"listen_addresses": stations.address(HUB)}, network=stations.network(HUB))
    try:
        with (home_of(folder) / "cluster" / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {stations.subnet}.0/24 scram-sha-256\n")
        asyncio.run(_prepare(postgres.dsn))
        parts = urlsplit(postgres.dsn)
        there = f"{parts.username}:{parts.password}@{stations.address(HUB)}"
        yield postgres, f"postgresql://{there}/postgres?sslmode=disable"
    finally:
        postgres.stop()


async def _prepare(dsn: str) -> None:
    await migrate(dsn)
    conn = await asyncpg.connect(dsn)
    try:
        await conn.execute("SELECT pg_reload_conf()")
    finally:
        await conn.close()


def _new_folder() -> Path:
    """Return a new folder that the user of the database can pass through."""
    folder = Path(tempfile.mkdtemp(prefix="lk-"))
    folder.chmod(0o711)
    return folder


@asynccontextmanager
async def running_hosts(stations: Stations) -> AsyncIterator[Hosts]:
    """Give hosts that run until the context is left, once all of them serve."""
    folder = _new_folder()
    stack = ExitStack()
    try:
        postgres, dsn = await asyncio.to_thread(stack.enter_context, _postgres(folder / "database", stations))
        async with await Database.connect(postgres.dsn, max_size=4) as database:
            key = await make_key(postgres.dsn, "acme")
            hosts = Hosts(folder, stations, postgres, database, World(postgres.dsn, key, []))
            for name in ENGINE_HOSTS:
                host = Host(folder / name, dsn, database, stations.network(name))
                stack.callback(host.close)
                host.variables["LORIKEET_LINK_ADDRESS"] = stations.address(name)
                host.variables[PRODUCED_VARIABLE] = str(folder / "produced")
                hosts.by_name[name] = host
            (folder / "produced").touch()
            first = hosts.by_name["a"]
            model = first.model(BASE)
            await first.pool(model, num_replicas=2, name=BASE)
            async with database.acquire() as conn:
                for number in range(1, NUM_ADAPTERS + 1):
                    await adapter_versions.put_adapter(
                        conn,
                        key.project_id,
                        name_of(BASE, number),
                        base_digest=model_digest(model),
                        digest=f"{rotation(BASE, number):08x}".ljust(64, "a"),
                        rank=8,
                        size_bytes=1,
                    )
            for name in ENGINE_HOSTS:
                hosts.start_agent(name)
            await _both_alive(hosts)
            for name in GATEWAY_HOSTS:
                (folder / name).mkdir()
                settings = Settings(data_dir=folder / name, model=str(model), model_name=BASE, drain_seconds=5.0)
                settings.run_dir.mkdir(parents=True, exist_ok=True)
                gateway = GatewayProcess(settings, dsn, network=stations.network(name))
                stack.callback(gateway.close)
                gateway.start()
                hosts.gateways.append(gateway)
            await first.ready(2, name=BASE)
            for gateway in hosts.gateways:
                await asyncio.to_thread(gateway.wait_ready)
            await _warm_up(hosts)
            yield hosts
    finally:
        await asyncio.to_thread(stack.close)
        shutil.rmtree(folder, ignore_errors=True)


async def _both_alive(hosts: Hosts) -> None:
    async def are() -> bool:
        async with hosts.database.acquire() as conn:
            return [each.is_alive for each in await list_hosts(conn)] == [True, True]

    await until(are, hosts.by_name["a"].log)


async def _warm_up(hosts: Hosts) -> None:
    """Send each gateway a request for each model, since only known models are served without the database."""
    async with httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as http:
        for gateway in hosts.gateways:
            for number in range(NUM_ADAPTERS + 1):
                model = f"{BASE}:{name_of(BASE, number)}" if number else BASE
                asked = asked_of_fake(model, rotation(BASE, number), [5, 6, 7], 1, stream=False)
                await hosts.world.ask(http, asked, gateway)
    assert set(hosts.world.outcomes) == {"answered"}, hosts.world.outcomes
