"""One gateway that sends traces to a collector, over a fake engine, for all tests of this folder, and a tenant."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import msgspec
import pytest

from tests.gateway.live import LiveGateway, Tenant, make_operator_key, make_tenant
from tests.gateway.model_folder import make_model_folder
from tests.gateway.observability.tracing.collector import Collector, running_collector
from tests.installation.databases import Databases
from tests.installation.live_gateway import running_gateways
from tests.patience import PATIENCE_S

TOKENS_PER_S = 500


class Site(msgspec.Struct, frozen=True):
    """A gateway with its collector, and a tenant's client."""

    gateway: LiveGateway
    collector: Collector
    tenant: Tenant
    client: httpx.Client
    dsn: str
    operator_key: str


@pytest.fixture(scope="package")
def site(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    dsn, folder = databases.create("traces"), tmp_path_factory.mktemp("traces")
    tenant = asyncio.run(make_tenant(dsn, "acme", "pirate", "1"))
    operator_key = asyncio.run(make_operator_key(dsn))
    with (
        running_collector() as collector,
        running_gateways(
            dsn,
            make_model_folder(folder / "model"),
            engine_flags=("--tokens-per-s", str(TOKENS_PER_S)),
            data_dir=folder,
            traces_url=collector.url,
            traces_headers="x-key=a%20secret",
        ) as installed,
        httpx.Client(
            base_url=installed.gateway.url, headers={"authorization": f"Bearer {tenant.key}"}, timeout=PATIENCE_S
        ) as client,
    ):
        yield Site(installed.gateway, collector, tenant, client, dsn, operator_key)
