"""Faults of gateways, engines, the database and journals of an installation under load."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from resource import RLIMIT_FSIZE, prlimit

import asyncpg
import httpx

from tests.deploy.alerts.scene import FIRES_WITHIN_S, Scene, add_pool_of, is_firing, start, tenant_client
from tests.gateway.routing.policies.routes import Routes, target
from tests.installation.databases import execute
from tests.installation.tenants import Tenant
from tests.installation.waiting import wait_until


def gateway_down(scene: Scene, until: ExitStack) -> None:
    gateway = scene.ground.gateways[1]
    gateway.kill()
    until.callback(start, scene, 1)


def pool_down(scene: Scene, until: ExitStack) -> None:
    for engine in scene.ground.engines.of_base["large"]:
        engine.kill()
        until.callback(engine.start)


def usage_not_recorded(scene: Scene, until: ExitStack) -> None:
    """Bound the size of a gateway's files, so that it cannot write usage, as if its disk were full."""
    pid = scene.ground.gateways[1].pid
    assert pid is not None
    soft, hard = prlimit(pid, RLIMIT_FSIZE)
    prlimit(pid, RLIMIT_FSIZE, (1, hard))
    until.callback(_if_it_lives, lambda: prlimit(pid, RLIMIT_FSIZE, (soft, hard)))


def database_away(scene: Scene, until: ExitStack) -> None:
    """Stop the database for longer than the time after which stored content is dropped."""
    dsn = scene.ground.postgres.dsn
    asyncio.run(execute(dsn, "UPDATE projects SET log_content_days = 1"))
    until.callback(lambda: asyncio.run(execute(dsn, "UPDATE projects SET log_content_days = 0")))
    scene.traffic.more_answers(20)
    until.enter_context(scene.ground.postgres.stopped())
    with tenant_client(scene) as client:
        reply = client.post("/v1/completions", json={"model": "small", "prompt": [5, 6, 7], "max_tokens": 10**9})
        assert reply.status_code == 400, reply.text


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
    start(scene, 1)


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
            start(scene, number)
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


def route_falls_back(scene: Scene, until: ExitStack) -> None:
    """Send requests to a route whose first target has no engine."""
    ground = scene.ground
    key = ground.world.key
    add_pool_of(scene, until, "down", f"ipc://{ground.folder}/nobody.sock")
    client = httpx.Client(base_url=ground.gateways[0].url, headers=key.headers, timeout=60, trust_env=False)
    until.callback(client.close)
    tenant = Tenant(key.project_id, key.secret, "", "")
    routes = Routes(ground.postgres.dsn, tenant, client)
    routes.make("either", {"fallback": {"nodes": [target("down"), target("small")]}})
    body = {"model": "either", "prompt": [5, 6, 7], "max_tokens": 1}

    def keep_asking() -> bool:
        client.post("/v1/completions", json=body)
        return is_firing(scene, "RouteFallsBack")

    wait_until(keep_asking, "no route falls back", patience_s=FIRES_WITHIN_S, pause_s=0.2)


def background_responses_fail(scene: Scene, until: ExitStack) -> None:
    """Kill the engine of responses in the background while it generates them."""
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
        return is_firing(scene, "BackgroundResponsesFail")

    wait_until(lose_one, "no response fails", patience_s=FIRES_WITHIN_S, pause_s=0.5)


def _if_it_lives(act: Callable[[], object]) -> None:
    with suppress(ProcessLookupError):
        act()
