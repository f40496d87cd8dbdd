"""Two gateways over one engine that records its requests, for all tests of routing; each test has tenants of its
own."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import httpx
import msgspec
import pytest

from gateway.db.pool import LISTENER_NAME
from tests.gateway.bases import put_adapter
from tests.gateway.live import LiveGateway, make_operator_key
from tests.gateway.model_folder import make_model_folder
from tests.gateway.routing.lab import Lab
from tests.gateway.routing.recording_engine import RecordingEngine
from tests.installation.databases import Databases
from tests.installation.live_gateway import gateways_with
from tests.patience import PATIENCE_S

_CUT = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = $1 AND datname = $2"


def digest_of_version(number: int) -> str:
    """Return a content digest for which the fake engine rotates its answers by this number."""
    return f"{number:08x}".ljust(64, "a")


class City(msgspec.Struct, frozen=True):
    """Two gateways over one recording engine, an operator's key, and the DSN of their database."""

    gateways: list[LiveGateway]
    engine: RecordingEngine
    operator_key: str
    dsn: str

    async def fetch(self, sql: str, *values: Any) -> list[asyncpg.Record]:
        conn = await asyncpg.connect(self.dsn)
        try:
            return await conn.fetch(sql, *values)
        finally:
            await conn.close()

    async def cut_notifications(self) -> None:
        await self.fetch(_CUT, LISTENER_NAME, urlsplit(self.dsn).path[1:])

    async def put(self, project_id: str, adapter: str, *versions: int) -> None:
        """Write these versions of an adapter, the last of them current."""
        conn = await asyncpg.connect(self.dsn)
        try:
            for number in versions:
                digest = digest_of_version(number)
                await put_adapter(conn, project_id, adapter, digest=digest, rank=8, size_bytes=1)
        finally:
            await conn.close()


@pytest.fixture(scope="package")
def city(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[City]:
    folder: Path = tmp_path_factory.mktemp("city")
    model_dir = make_model_folder(folder / "model")
    dsn = databases.create("city")
    operator_key = asyncio.run(make_operator_key(dsn))
    make_engine = functools.partial(RecordingEngine, tokens_per_s=500)
    with gateways_with(make_engine, dsn, model_dir, num_gateways=2, data_dir=folder, max_failed_keys=0) as installed:
        yield City(installed.gateways, installed.engine, operator_key, dsn)


@pytest.fixture
async def operator(city: City) -> AsyncIterator[httpx.AsyncClient]:
    """Give a client of the first gateway's admin API with the operator's key."""
    headers = {"authorization": f"Bearer {city.operator_key}"}
    async with httpx.AsyncClient(
        base_url=f"{city.gateways[0].url}/v1/organization", headers=headers, timeout=PATIENCE_S
    ) as client:
        yield client


_NUMBERS = itertools.count(1)


class Tenant:
    """A project of the test's own.

    path: the project's path in the admin API.
    """

    def __init__(self, city: City, operator: httpx.AsyncClient, project_id: str) -> None:
        self.city = city
        self.project_id = project_id
        self.path = f"/projects/{project_id}"
        self._operator = operator
        self._clients: list[httpx.AsyncClient] = []

    async def client(self, gateway: int = 0, **key: Any) -> httpx.AsyncClient:
        """Return a client with a new key that has these fields."""
        made = await self._operator.post(f"{self.path}/api_keys", json={"scopes": ["inference"]} | key)
        headers = {"authorization": f"Bearer {made.json()['value']}"}
        client = httpx.AsyncClient(base_url=self.city.gateways[gateway].url, headers=headers, timeout=PATIENCE_S)
        self._clients.append(client)
        return client

    async def put(self, adapter: str, *versions: int) -> None:
        await self.city.put(self.project_id, adapter, *versions)

    async def close(self) -> None:
        for client in self._clients:
            await client.aclose()


@pytest.fixture
async def tenants(city: City, operator: httpx.AsyncClient) -> AsyncIterator[list[Tenant]]:
    """Give three tenants."""
    made = []
    for _ in range(3):
        reply = await operator.post("/projects", json={"name": f"tenant {next(_NUMBERS)}"})
        made.append(Tenant(city, operator, reply.json()["id"]))
    yield made
    for tenant in made:
        await tenant.close()


@pytest.fixture
async def lab(city: City, tenants: list[Tenant]) -> Lab:
    """Return one of the tenants, with three versions of an adapter, and its clients."""
    tenant = tenants[0]
    await tenant.put("bot", 1, 2, 3)
    return Lab(city, tenant, [await tenant.client(gateway) for gateway in range(2)])
