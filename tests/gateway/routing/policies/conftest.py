"""One gateway over several pools for all tests of this folder, and a tenant."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gateway.settings import Settings
from tests.gateway.live import FakeEngine, LiveGateway, Tenant, make_tenant
from tests.gateway.model_folder import make_model_folder
from tests.gateway.routing.policies.routes import (
    BROKEN,
    DOWN,
    LARGE,
    PAIR,
    PAIR_FAST,
    PAIR_SLOW,
    SLOW,
    SMALL,
    Routes,
    add_pool,
    add_replica,
    complete,
)
from tests.gateway.routing.recording_engine import RecordingEngine
from tests.installation.databases import Databases
from tests.installation.waiting import wait_until
from tests.patience import PATIENCE_S


@pytest.fixture(scope="package")
def dsn_of_all(databases: Databases) -> str:
    """Return the DSN of a database that all tests of this folder share."""
    return databases.create("policies")


@pytest.fixture(scope="package")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {name: make_model_folder(tmp_path_factory.mktemp("models") / name) for name in (SMALL, LARGE)}
    config = json.loads((made[LARGE] / "config.json").read_text())
    larger = {"num_hidden_layers": 2, "hidden_size": 64, "max_position_embeddings": 4096}
    (made[LARGE] / "config.json").write_text(json.dumps(config | larger))
    return made


@pytest.fixture(scope="package")
def settings(tmp_path_factory: pytest.TempPathFactory, folders: dict[str, Path]) -> Settings:
    made = Settings(data_dir=tmp_path_factory.mktemp("data"), model=str(folders[SMALL]), model_name=SMALL)
    made.run_dir.mkdir()
    return made


@pytest.fixture(scope="package")
def recording(settings: Settings, folders: dict[str, Path]) -> Iterator[dict[str, RecordingEngine]]:
    """Give the engines of the pools that are slow, broken or paired, by name.

    The first token of the slow ones takes two seconds. The broken one fails at every request.
    """
    made = {
        name: RecordingEngine(
            f"ipc://{settings.run_dir}/{name}.sock", folders[LARGE], tokens_per_s=0.5 if "slow" in name else 0
        )
        for name in (SLOW, BROKEN, PAIR_SLOW, PAIR_FAST)
    }
    made[BROKEN].break_on("")
    yield made
    for each in made.values():
        each.stop()


@pytest.fixture(scope="package")
def gateway(
    dsn_of_all: str, settings: Settings, recording: dict[str, RecordingEngine], folders: dict[str, Path]
) -> Iterator[LiveGateway]:
    """Give a gateway over six pools.

    A small and a large pool have an engine each. The engine of another pool never comes, the first token of one takes
    two seconds, one fails at every request, and one has a slow replica and a fast one.
    """
    address = {name: f"ipc://{settings.run_dir}/{name}.sock" for name in (LARGE, DOWN, *recording)}
    engines = [FakeEngine(settings.engine.endpoint, folders[SMALL]), FakeEngine(address[LARGE], folders[LARGE])]
    gateway = LiveGateway(settings, folders[SMALL], dsn_of_all)
    try:
        gateway.start()
        for name in (LARGE, DOWN, SLOW, BROKEN):
            asyncio.run(add_pool(dsn_of_all, name, folders[LARGE], address[name]))
        asyncio.run(add_pool(dsn_of_all, PAIR, folders[LARGE], address[PAIR_SLOW]))
        asyncio.run(add_replica(dsn_of_all, PAIR, address[PAIR_FAST]))
        yield gateway
    finally:
        gateway.stop()
        for engine in engines:
            engine.kill()


@pytest.fixture(scope="package")
def tenant(dsn_of_all: str, gateway: LiveGateway) -> Tenant:
    return asyncio.run(make_tenant(dsn_of_all, "acme", "pirate", "1"))


@pytest.fixture(scope="package")
def client(gateway: LiveGateway, tenant: Tenant) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {tenant.key}"}
    with httpx.Client(base_url=gateway.url, headers=headers, timeout=PATIENCE_S) as client:
        for name in (SMALL, LARGE):
            wait_until(lambda name=name: complete(client, name).status_code == 200, f"the pool {name} answers")
        wait_until(lambda: complete(client, DOWN).status_code == 503, "the third pool is known")
        wait_until(lambda: complete(client, BROKEN).status_code == 502, "the broken pool fails")
        wait_until(lambda: complete(client, SLOW, max_tokens=1).status_code == 200, "the slow pool answers")
        yield client


@pytest.fixture(scope="package")
def made(dsn_of_all: str, tenant: Tenant, client: httpx.Client) -> Routes:
    return Routes(dsn_of_all, tenant, client)
