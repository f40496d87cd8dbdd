"""Faults of an installation under load, each with the alerts that have to fire of it."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from resource import RLIMIT_FSIZE, prlimit
from typing import Any, NamedTuple

import asyncpg
import httpx

from gateway.db.experiments.events import LOCK_KEY
from gateway.db.pools.pools import remove_pool
from gateway.domain.experiments.definition import Guardrail, Metrics, Primary
from tests.deploy.alerts.live import Prometheus
from tests.drills.ground import Ground
from tests.drills.traffic import Traffic
from tests.gateway.experiments.making import ArmOf, start_experiment
from tests.gateway.routing.policies.routes import Routes, add_pool, target
from tests.installation.databases import execute
from tests.installation.processes import ChildProcess
from tests.installation.tenants import Tenant
from tests.installation.waiting import wait_until

FIRES_WITHIN_S = 150.0
NUM_QUEUED = 50
"""Requests at one time to an engine that has two places."""


class Scene:
    """An installation under load, and what watches it."""

    def __init__(self, ground: Ground, traffic: Traffic, prometheus: Prometheus) -> None:
        self.ground = ground
        self.traffic = traffic
        self.prometheus = prometheus


Fault = Callable[[Scene, ExitStack], None]
"""Brings a fault about, which ends with the stack."""


def gateway_down(scene: Scene, until: ExitStack) -> None:
    gateway = scene.ground.gateways[1]
    gateway.kill()
    until.callback(_start, scene, 1)


def pool_down(scene: Scene, until: ExitStack) -> None:
    for engine in scene.ground.engines.of_base["large"]:
        engine.kill()
        until.callback(engine.start)


def usage_not_recorded(scene: Scene, until: ExitStack) -> None:
    """Let no file of a gateway grow any more, as if its disk were full."""
    pid = scene.ground.gateways[1].pid
    assert pid is not None
    soft, hard = prlimit(pid, RLIMIT_FSIZE)
    prlimit(pid, RLIMIT_FSIZE, (1, hard))
    until.callback(_if_it_lives, lambda: prlimit(pid, RLIMIT_FSIZE, (soft, hard)))


def database_away(scene: Scene, until: ExitStack) -> None:
    """Stop the database for longer than content waits for it."""
    dsn = scene.ground.postgres.dsn
    asyncio.run(execute(dsn, "UPDATE projects SET log_content_days = 1"))
    until.callback(lambda: asyncio.run(execute(dsn, "UPDATE projects SET log_content_days = 0")))
    scene.traffic.more_answers(20)
    until.enter_context(scene.ground.postgres.stopped())


def ledger_differs(scene: Scene, until: ExitStack) -> None:
    """Make the ledger forget tokens that engines have counted, as a ledger restored without the journals does."""
    asyncio.run(execute(scene.ground.postgres.dsn, "UPDATE engine_usage SET prompt_tokens = prompt_tokens - 1000"))
    undo = "UPDATE engine_usage SET prompt_tokens = prompt_tokens + 1000"
    until.callback(lambda: asyncio.run(execute(scene.ground.postgres.dsn, undo)))


def journal_damaged(scene: Scene, until: ExitStack) -> None:
    """Kill a gateway, and change bytes in the middle of its journal before another gateway reads it."""
    gateway = scene.ground.gateways[1]
    gateway.kill()
    for path in (scene.ground.folder / "journal").glob("*/*.journal"):
        content = bytearray(path.read_bytes())
        if len(content) > 1000:
            content[500:520] = bytes(20)
            path.write_bytes(content)
    _start(scene, 1)


def requests_unbilled(scene: Scene, until: ExitStack) -> None:
    """Kill a gateway and the engines, and lose the gateway's folder: nobody knows which requests ran."""
    dsn = scene.ground.postgres.dsn
    until.callback(lambda: asyncio.run(execute(dsn, "UPDATE journals SET open_requests = 0")))

    def lose_one() -> bool:
        """Return whether a journal was lost of which the database knows that requests were open."""
        for gateway in scene.ground.gateways:
            gateway.kill()
        for engines in scene.ground.engines.of_base.values():
            for engine in engines:
                engine.restart()
        lost = asyncio.run(_open_journals(dsn))
        for folder in lost:
            shutil.rmtree(folder)
        for number in range(len(scene.ground.gateways)):
            _start(scene, number)
        scene.traffic.more_answers(5)
        return bool(lost)

    wait_until(lose_one, "no request was open", patience_s=FIRES_WITHIN_S)


async def _open_journals(dsn: str) -> list[Path]:
    """Return the folders of the latest journals with requests that have no row."""
    conn = await asyncpg.connect(dsn)
    try:
        rows = await conn.fetch("SELECT folder FROM journals WHERE open_requests > 0")
    finally:
        await conn.close()
    folders = [Path(row["folder"].partition(":")[2]) for row in rows]
    return [folder for folder in folders if folder.exists()]


def queue_long(scene: Scene, until: ExitStack) -> None:
    """Many more requests come than an engine has places for, and most answers of the installation begin late.

    The engine is one that schedules, as fake ones do not. It answers 12 requests a second.
    """
    folder = scene.ground.folder
    address = f"ipc://{folder}/crowded.sock"
    flags = ["--endpoint", address, "--model-dir", str(folder / "small"), "--step-s", "0.16", "--max-num-seqs", "2"]
    engine = ChildProcess([sys.executable, "-m", "tests.faults.pools.paced_engine", *flags])
    engine.start()
    until.callback(engine.kill)
    _pool(scene, until, "crowded", address)
    until.enter_context(_crowd(scene, "crowded"))


def route_falls_back(scene: Scene, until: ExitStack) -> None:
    """Send requests to a route whose first target has no engine."""
    ground = scene.ground
    key = ground.world.key
    _pool(scene, until, "down", f"ipc://{ground.folder}/nobody.sock")
    client = httpx.Client(base_url=ground.gateways[0].url, headers=key.headers, timeout=60, trust_env=False)
    until.callback(client.close)
    tenant = Tenant(key.project_id, key.secret, "", "")
    routes = Routes(ground.postgres.dsn, tenant, client)
    routes.make("either", {"fallback": {"nodes": [target("down"), target("small")]}})
    body = {"model": "either", "prompt": [5, 6, 7], "max_tokens": 1}

    def keep_asking() -> bool:
        client.post("/v1/completions", json=body)
        return ("RouteFallsBack", "") in scene.prometheus.firing()

    wait_until(keep_asking, "no route falls back", patience_s=FIRES_WITHIN_S, pause_s=0.2)


def background_responses_fail(scene: Scene, until: ExitStack) -> None:
    """Responses in the background lose their engine while they are said."""
    ground = scene.ground
    key = ground.world.key
    asyncio.run(execute(ground.postgres.dsn, "UPDATE projects SET store_days = 1"))
    body = {"model": "small", "input": "abc", "background": True, "max_output_tokens": 200}

    def lose_one() -> bool:
        reply = httpx.post(f"{ground.gateways[0].url}/v1/responses", json=body, headers=key.headers, timeout=60)
        if reply.status_code == 200:
            url = f"{ground.gateways[0].url}/v1/responses/{reply.json()['id']}"
            with suppress(AssertionError):
                wait_until(
                    lambda: httpx.get(url, headers=key.headers, timeout=60).json()["status"] == "in_progress",
                    patience_s=5,
                )
            time.sleep(1)  # so that something is said
            ground.engines.of_base["small"][0].restart()
        return ("BackgroundResponsesFail", "") in scene.prometheus.firing()

    wait_until(lose_one, "no response fails", patience_s=FIRES_WITHIN_S, pause_s=0.5)


def experiments_behind(scene: Scene, until: ExitStack) -> None:
    """Somebody holds the lock of those who keep the books of experiments."""
    _experiment(scene, "behind", (ArmOf("control"), ArmOf("other", "small-1")))
    until.enter_context(_locked(scene.ground.postgres.dsn))
    with _tenant_client(scene) as client:
        body = {"model": "behind", "prompt": [5, 6, 7], "max_tokens": 1}
        assert client.post("/v1/completions", json=body | {"user": "ann"}).status_code == 200


def experiment_paused(scene: Scene, until: ExitStack) -> None:
    """Run an experiment of which one arm has no engine, so that its requests are refused."""
    _pool(scene, until, "gone", f"ipc://{scene.ground.folder}/gone.sock")
    metrics = Metrics((Primary("cost_nanos", "decrease"),), (Guardrail("refusal_rate", "pause"),))
    _experiment(scene, "harmful", (ArmOf("control"), ArmOf("harm", pool="gone")), metrics=metrics)
    with _tenant_client(scene) as client:
        units = itertools.count()

        def keep_asking() -> bool:
            for _ in range(10):
                body = {"model": "harmful", "prompt": [5, 6, 7], "max_tokens": 1, "user": f"unit-{next(units)}"}
                client.post("/v1/completions", json=body)
            return ("ExperimentPaused", "") in scene.prometheus.firing()

        wait_until(keep_asking, "the experiment goes on", patience_s=FIRES_WITHIN_S)


def _pool(scene: Scene, until: ExitStack, name: str, address: str) -> None:
    """Add a pool with one engine at an address, which is taken away with the stack: a pool without engine alerts."""
    dsn = scene.ground.postgres.dsn
    asyncio.run(add_pool(dsn, name, scene.ground.folder / "small", address))
    until.callback(lambda: asyncio.run(_remove_pool(dsn, name)))


async def _remove_pool(dsn: str, name: str) -> None:
    conn = await asyncpg.connect(dsn)
    try:
        async with conn.transaction():
            pool_id = await conn.fetchval("SELECT id FROM pools WHERE name = $1 AND removed_at IS NULL", name)
            await remove_pool(conn, pool_id)
    finally:
        await conn.close()


def _experiment(scene: Scene, name: str, arms: Sequence[ArmOf], **fields: Any) -> None:
    """Start an experiment of the tenant, and wait until both gateways know it. fields: more of its definition."""

    async def start() -> None:
        conn = await asyncpg.connect(scene.ground.postgres.dsn)
        try:
            project_id = scene.ground.world.key.project_id
            await start_experiment(conn, project_id, arms, pool="small", name=name, model=name, layer=name, **fields)
        finally:
            await conn.close()

    asyncio.run(start())
    with _tenant_client(scene) as client:
        models = lambda: {each["id"] for each in client.get("/v1/models").json()["data"]}  # noqa: E731
        wait_until(lambda: name in models(), "the experiment is not listed")


@contextmanager
def _tenant_client(scene: Scene) -> Iterator[httpx.Client]:
    key, url = scene.ground.world.key, scene.ground.gateways[0].url
    with httpx.Client(base_url=url, headers=key.headers, timeout=60, trust_env=False) as client:
        yield client


@contextmanager
def _locked(dsn: str) -> Iterator[None]:
    """Hold the lock of the books of experiments until the context is left."""
    loop = asyncio.new_event_loop()
    conn = loop.run_until_complete(asyncpg.connect(dsn))
    try:
        loop.run_until_complete(conn.execute("SELECT pg_advisory_lock($1)", LOCK_KEY))
        yield
    finally:
        loop.run_until_complete(conn.close())
        loop.close()


class Cause(NamedTuple):
    """A fault and its alerts.

    fires: the alerts that have to fire. beside: others that may, since the fault is their cause, too.
    """

    fault: Fault
    fires: set[tuple[str, str]]
    beside: set[str] = frozenset()  # type: ignore[assignment]


FAIL = {"RequestsFail", "FirstTokensLate", "LedgerDiffers", "EngineDown"}
CAUSES = {
    "gateway_down": Cause(gateway_down, {("GatewayDown", "")}, FAIL),
    "pool_down": Cause(pool_down, {("PoolDown", ""), ("EngineDown", ""), ("RequestsFail", "1h")}, FAIL),
    "usage_not_recorded": Cause(usage_not_recorded, {("UsageNotRecorded", "")}, FAIL),
    "database_away": Cause(
        database_away, {("LedgerBehind", ""), ("ContentLost", "")}, FAIL | {"ExperimentsBehind", "RefusalsLost"}
    ),
    "ledger_differs": Cause(ledger_differs, {("LedgerDiffers", "")}, set()),
    "queue_long": Cause(queue_long, {("QueueLong", ""), ("FirstTokensLate", "1h")}, FAIL | {"PoolDown"}),
    "route_falls_back": Cause(route_falls_back, {("RouteFallsBack", "")}, FAIL | {"PoolDown"}),
    "background_responses_fail": Cause(
        background_responses_fail, {("BackgroundResponsesFail", "")}, FAIL | {"PoolDown"}
    ),
    "experiments_behind": Cause(experiments_behind, {("ExperimentsBehind", "")}, set()),
    "experiment_paused": Cause(experiment_paused, {("ExperimentPaused", "")}, FAIL | {"PoolDown", "ExperimentsBehind"}),
    "journal_damaged": Cause(journal_damaged, {("JournalDamaged", "")}, FAIL | {"GatewayDown"}),
    "requests_unbilled": Cause(
        requests_unbilled, {("RequestsUnbilled", "")}, FAIL | {"GatewayDown", "PoolDown", "JournalDamaged"}
    ),
}


@contextmanager
def _crowd(scene: Scene, model: str) -> Iterator[None]:
    """Keep as many requests under way as NUM_QUEUED says, until the context is left."""
    key, url, enough = scene.ground.world.key, scene.ground.gateways[0].url, threading.Event()
    body = {"model": model, "prompt": [5, 6, 7], "max_tokens": 1}

    async def ask(http: httpx.AsyncClient) -> None:
        while not enough.is_set():
            await http.post("/v1/completions", json=body)

    async def crowd() -> None:
        async with httpx.AsyncClient(base_url=url, headers=key.headers, timeout=120, trust_env=False) as http:
            await asyncio.gather(*(ask(http) for _ in range(NUM_QUEUED)))

    thread = threading.Thread(target=lambda: asyncio.run(crowd()))
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def _start(scene: Scene, number: int) -> None:
    gateway = scene.ground.gateways[number]
    gateway.start()
    gateway.wait_ready()


def _if_it_lives(act: Callable[[], object]) -> None:
    with suppress(ProcessLookupError):
        act()
