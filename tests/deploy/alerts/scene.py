"""An installation under load with a Prometheus that watches it, and the means to bring faults upon it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import httpx

from gateway.db.pools.pools import remove_pool
from tests.deploy.alerts.live import Prometheus
from tests.drills.ground import Ground
from tests.drills.traffic import Traffic
from tests.gateway.experiments.making import ArmOf, start_experiment
from tests.gateway.routing.policies.routes import add_pool
from tests.installation.waiting import wait_until

FIRES_WITHIN_S = 150.0


class Scene:
    """An installation under load, and the servers that watch it."""

    def __init__(self, ground: Ground, traffic: Traffic, prometheus: Prometheus) -> None:
        self.ground = ground
        self.traffic = traffic
        self.prometheus = prometheus


Fault = Callable[[Scene, ExitStack], None]
"""A function that causes a fault, which ends when the stack is left."""


def is_firing(scene: Scene, name: str) -> bool:
    """Tell whether an alert without windows is firing."""
    return (name, "") in scene.prometheus.firing()


def start(scene: Scene, number: int) -> None:
    """Start the gateway with this number, and return once it is ready."""
    gateway = scene.ground.gateways[number]
    gateway.start()
    gateway.wait_ready()


def add_pool_of(scene: Scene, until: ExitStack, name: str, address: str, folder: Path | None = None) -> None:
    """Add a pool with one engine at an address, and remove it when the stack is left: a pool without engine alerts.

    folder: the base model; without one, the base of the pool "small".
    """
    dsn = scene.ground.postgres.dsn
    asyncio.run(add_pool(dsn, name, folder or scene.ground.folder / "small", address))
    until.callback(lambda: asyncio.run(_remove_pool(dsn, name)))


async def _remove_pool(dsn: str, name: str) -> None:
    conn = await asyncpg.connect(dsn)
    try:
        async with conn.transaction():
            pool_id = await conn.fetchval("SELECT id FROM pools WHERE name = $1 AND removed_at IS NULL", name)
            await remove_pool(conn, pool_id)
    finally:
        await conn.close()


def begin_experiment(scene: Scene, name: str, arms: Sequence[ArmOf], **fields: Any) -> None:
    """Start an experiment of the tenant, and wait until both gateways know it. fields: more of its definition."""

    async def begin() -> None:
        conn = await asyncpg.connect(scene.ground.postgres.dsn)
        try:
            project_id = scene.ground.world.key.project_id
            await start_experiment(conn, project_id, arms, pool="small", name=name, model=name, layer=name, **fields)
        finally:
            await conn.close()

    asyncio.run(begin())
    with tenant_client(scene) as client:

        def is_listed() -> bool:
            return name in {each["id"] for each in client.get("/v1/models").json()["data"]}

        wait_until(is_listed, "the experiment is not listed")


@contextmanager
def tenant_client(scene: Scene) -> Iterator[httpx.Client]:
    """Give a client of the first gateway with the tenant's key."""
    key, url = scene.ground.world.key, scene.ground.gateways[0].url
    with httpx.Client(base_url=url, headers=key.headers, timeout=60, trust_env=False) as client:
        yield client


@contextmanager
def crowd(scene: Scene, models: Sequence[str], num: int, max_tokens: int = 1) -> Iterator[None]:
    """Keep `num` requests running, spread over models, until the context is left.

    max_tokens: the tokens of each answer.
    """
    key, url, enough = scene.ground.world.key, scene.ground.gateways[0].url, threading.Event()

    async def ask(http: httpx.AsyncClient, number: int) -> None:
        body = {"prompt": [5, 6, 7], "max_tokens": max_tokens, "ignore_eos": True}
        while not enough.is_set():
            await http.post("/v1/completions", json=body | {"model": models[number % len(models)]})
            number += 1

    async def ask_all() -> None:
        limits = httpx.Limits(max_connections=num)
        async with httpx.AsyncClient(
            base_url=url, headers=key.headers, timeout=120, trust_env=False, limits=limits
        ) as http:
            await asyncio.gather(*(ask(http, number) for number in range(num)))

    thread = threading.Thread(target=lambda: asyncio.run(ask_all()))
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()
