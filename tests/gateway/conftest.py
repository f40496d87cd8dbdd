"""The `house`: one gateway with two tenants for all tests over HTTP, whose fake engine makes 500 steps a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from tests.gateway.live import FakeEngine, LiveGateway, Tenant, make_operator_key, make_tenant
from tests.gateway.model_folder import make_model_folder
from tests.installation.databases import Databases
from tests.installation.live_gateway import AnyEngine, gateways_with


class House(msgspec.Struct, frozen=True):
    """A running gateway with two tenants, an operator's key, and the DSN of its database."""

    gateway: LiveGateway
    acme: Tenant
    globex: Tenant
    operator_key: str
    dsn: str

    @property
    def url(self) -> str:
        return self.gateway.url


@pytest.fixture(scope="package")
def house(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with open_house(databases.create("house"), tmp_path_factory.mktemp("house")) as house:
        yield house


@contextmanager
def open_house(
    dsn: str,
    folder: Path,
    tokens_per_s: int = 500,
    max_body_bytes: int = 1 << 20,
    make_engine: Callable[[str, Path], AnyEngine] | None = None,
) -> Iterator[House]:
    """Serve over a new database until the context is left.

    tokens_per_s: the steps per second of the fake engine; each makes one token for every running choice. make_engine:
    starts another engine at a socket, with a model folder; None: a fake engine in a process of its own.
    """

    def make_fake(endpoint: str, model_dir: Path) -> FakeEngine:
        return FakeEngine(endpoint, model_dir, "--tokens-per-s", str(tokens_per_s))

    model_dir = make_model_folder(folder / "model")
    acme = asyncio.run(make_tenant(dsn, "acme", "pirate", "1"))
    globex = asyncio.run(make_tenant(dsn, "globex", "poet", "2"))
    operator_key = asyncio.run(make_operator_key(dsn))
    with gateways_with(
        make_engine or make_fake,
        dsn,
        model_dir,
        data_dir=folder,
        max_body_bytes=max_body_bytes,
        max_failed_keys=0,  # whole tests come from one address here
        cors_origins="https://app.example.com, https://other.example.com:8443",
    ) as installed:
        yield House(installed.gateway, acme, globex, operator_key, dsn)
