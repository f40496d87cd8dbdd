"""One gateway over engines of two base models: both answer and are listed, and an adapter answers under its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import httpx
import pytest

from engine.config import model_digest
from gateway.db.adapters import adapter_versions, aliases
from gateway.pools.first_pool import make_pool
from gateway.settings import Settings
from tests.gateway.live import FakeEngine, LiveGateway, Tenant, make_tenant
from tests.gateway.model_folder import make_model_folder
from tests.installation.waiting import wait_until
from tests.patience import PATIENCE_S

SMALL, LARGE = "small", "large"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folders of two models, of which the large one has another shape and so another digest."""
    made = {name: make_model_folder(tmp_path_factory.mktemp("models") / name) for name in (SMALL, LARGE)}
    config = json.loads((made[LARGE] / "config.json").read_text())
    (made[LARGE] / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2, "hidden_size": 64}))
    return made


@pytest.fixture(scope="module")
def gateway(
    module_dsn: str, tmp_path_factory: pytest.TempPathFactory, folders: dict[str, Path]
) -> Iterator[LiveGateway]:
    settings = Settings(data_dir=tmp_path_factory.mktemp("data"), model=str(folders[SMALL]), model_name=SMALL)
    settings.run_dir.mkdir()
    endpoint = f"ipc://{settings.run_dir}/large.sock"
    engines = [FakeEngine(settings.engine.endpoint, folders[SMALL]), FakeEngine(endpoint, folders[LARGE])]
    gateway = LiveGateway(settings, folders[SMALL], module_dsn)
    try:
        gateway.start()
        asyncio.run(add_pool(module_dsn, LARGE, folders[LARGE], endpoint))
        yield gateway
    finally:
        gateway.stop()
        for engine in engines:
            engine.kill()


async def add_pool(dsn: str, name: str, folder: Path, address: str) -> None:
    """Create a pool while the gateway runs."""
    conn = await asyncpg.connect(dsn)
    try:
        async with conn.transaction():
            digest = model_digest(folder)
            assert await make_pool(conn, name, model=str(folder), folder=folder, base_digest=digest, address=address)
    finally:
        await conn.close()


@pytest.fixture(scope="module")
def tenant(module_dsn: str, gateway: LiveGateway, folders: dict[str, Path]) -> Tenant:
    """Return a project with `pirate`, an adapter of the small base, `poet`, one of the large base, and an alias of
    `poet`."""
    tenant = asyncio.run(make_tenant(module_dsn, "acme", "pirate", "1"))

    async def add_poet() -> None:
        conn = await asyncpg.connect(module_dsn)
        try:
            base, digest = model_digest(folders[LARGE]), "2" * 64
            adapter, _ = await adapter_versions.put_adapter(
                conn, tenant.project_id, "poet", base_digest=base, digest=digest, rank=8, size_bytes=1
            )
            assert await aliases.create_alias(conn, tenant.project_id, "bard", adapter.id, 1)
        finally:
            await conn.close()

    asyncio.run(add_poet())
    return tenant


@pytest.fixture(scope="module")
def client(gateway: LiveGateway, tenant: Tenant) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {tenant.key}"}
    with httpx.Client(base_url=gateway.url, headers=headers, timeout=PATIENCE_S) as client:
        wait_until(lambda: complete(client, LARGE).status_code == 200, "the second pool answers")
        yield client


def complete(client: httpx.Client, model: str) -> httpx.Response:
    return client.post("/v1/completions", json={"model": model, "prompt": "abc", "max_tokens": 4})


@pytest.mark.parametrize(
    ("model", "adapter"),
    [
        (SMALL, None),
        (LARGE, None),
        (f"{SMALL}:pirate", "pirate@1"),
        (f"{SMALL}:pirate@1", "pirate@1"),
        (f"{LARGE}:poet", "poet@1"),
        ("bard", "poet@1"),
    ],
)
def test_each_model_answers_from_its_own_engine(client: httpx.Client, model: str, adapter: str | None) -> None:
    reply = complete(client, model)
    assert reply.status_code == 200, reply.text
    assert reply.headers.get("x-lorikeet-adapter") == adapter
    shown = client.post("/tokenize", json={"model": model, "prompt": "abc"})
    assert shown.status_code == 200, shown.text


@pytest.mark.parametrize("model", [f"{LARGE}:pirate", f"{LARGE}:pirate@1", f"{SMALL}:poet", f"{SMALL}:poet@1"])
def test_an_adapter_of_another_base_is_as_absent_as_none(client: httpx.Client, model: str) -> None:
    reply, absent = complete(client, model), complete(client, f"{SMALL}:nobody")
    assert reply.status_code == absent.status_code == 404
    assert reply.json()["error"]["code"] == "model_not_found"
    assert reply.text.replace(model, "X") == absent.text.replace(f"{SMALL}:nobody", "X")


def test_both_bases_and_what_each_has_are_listed(client: httpx.Client) -> None:
    listed = [model["id"] for model in client.get("/v1/models").json()["data"]]
    assert listed[:2] == [SMALL, LARGE]
    assert set(listed) == {SMALL, LARGE, f"{SMALL}:pirate", f"{LARGE}:poet", "bard"}


def test_a_request_that_names_no_model_has_to_where_there_are_two(client: httpx.Client) -> None:
    refused = client.post("/tokenize", json={"prompt": "abc"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")
