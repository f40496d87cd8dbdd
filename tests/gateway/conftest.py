"""One gateway with two tenants for all tests over HTTP; its engine makes 500 steps a second."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import msgspec
import pytest

from gateway.settings import Settings
from tests.conftest import with_database
from tests.gateway.live import BASE, FakeEngine, LiveGateway, Tenant, make_operator_key, make_tenant
from tests.gateway.model_folder import make_model_folder


class House(msgspec.Struct, frozen=True):
    gateway: LiveGateway
    acme: Tenant
    globex: Tenant
    operator_key: str
    dsn: str

    @property
    def url(self) -> str:
        return self.gateway.url


async def _create_database(postgres: str, name: str, template: str) -> None:
    conn = await asyncpg.connect(postgres)
    try:
        await conn.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    finally:
        await conn.close()


@pytest.fixture(scope="session")
def house(postgres: str, database_template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with open_house(postgres, database_template, tmp_path_factory.mktemp("house"), "house") as house:
        yield house


@contextmanager
def open_house(
    postgres: str,
    database_template: str,
    folder: Path,
    database: str,
    tokens_per_s: int = 500,
    max_body_bytes: int = 1 << 20,
) -> Iterator[House]:
    """A gateway over a new database of this name, until the context is left."""
    model_dir = make_model_folder(folder / "model")
    asyncio.run(_create_database(postgres, database, database_template))
    dsn = with_database(postgres, database)
    acme = asyncio.run(make_tenant(dsn, "acme", "pirate", "1"))
    globex = asyncio.run(make_tenant(dsn, "globex", "poet", "2"))
    operator_key = asyncio.run(make_operator_key(dsn))
    # Whole tests come from one address here.
    settings = Settings(
        data_dir=folder,
        model=str(model_dir),
        model_name=BASE,
        max_body_bytes=max_body_bytes,
        max_failed_keys=0,
        cors_origins="https://app.example.com, https://other.example.com:8443",
    )
    (folder / "run").mkdir()
    engine = FakeEngine(settings.engine.endpoint, model_dir, "--tokens-per-s", str(tokens_per_s))
    gateway = LiveGateway(settings, model_dir, dsn)
    try:
        gateway.start()
        yield House(gateway, acme, globex, operator_key, dsn)
    finally:
        gateway.stop()
        engine.kill()
