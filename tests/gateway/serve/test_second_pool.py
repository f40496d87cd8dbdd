"""The demo's second pool is made once, with its adapter, and a pool that an operator removes does not come back."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from engine.config import model_digest
from gateway.db.organization.organizations import ensure_organization
from gateway.db.organization.projects import create_project
from gateway.db.pool import Database
from gateway.db.pools.pools import find_pool, remove_pool
from gateway.pools.first_pool import ORGANIZATION
from gateway.serve.second_pool import ADAPTER, ADAPTER_FOLDER, NAME, TENANT, make_second_pool
from gateway.settings import Settings
from gateway.support.model_folders import prepared_folder
from tests.adapters.folders import write_adapter
from tests.gateway.model_folder import make_model_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a prepared model with its adapter inside."""
    folder = make_model_folder(tmp_path / "model")
    write_adapter(folder / ADAPTER_FOLDER)
    return folder


@pytest.mark.parametrize("model", ["demo", "demo-random", "owner/Model", "/models/model.gguf"])
def test_a_model_lies_once_on_disk_whatever_its_pools_are_called(tmp_path: Path, model: str) -> None:
    named = Settings(data_dir=tmp_path, model=model, model_name="Some/Name")
    unnamed = Settings(data_dir=tmp_path, model=model)
    assert prepared_folder(named) == prepared_folder(unnamed)
    other = msgspec.structs.replace(unnamed, model=f"{model}-2", model_name="")
    assert prepared_folder(other) != prepared_folder(unnamed)


def test_a_model_that_was_prepared_under_the_name_of_a_pool_is_not_prepared_again(tmp_path: Path) -> None:
    named = Settings(data_dir=tmp_path, model="owner/Model", model_name="support")
    folder = prepared_folder(named)
    former = folder.with_name(folder.name.replace("model-", "support-"))
    former.mkdir(parents=True)
    assert prepared_folder(named) == prepared_folder(Settings(data_dir=tmp_path, model="owner/Model")) == former


async def test_the_second_pool_is_made_once_and_stays_removed(
    dsn: str, database: Database, folder: Path, tmp_path: Path
) -> None:
    settings = Settings(data_dir=tmp_path)
    async with database.acquire() as conn:
        organization = await ensure_organization(conn, ORGANIZATION)
        assert await create_project(conn, organization.id, TENANT) is not None
    for _ in range(2):
        await make_second_pool(dsn, settings, folder)
    async with database.acquire() as conn:
        pool = await find_pool(conn, organization.id, NAME)
        assert pool is not None
        assert pool.num_replicas == 1
        adapters = await conn.fetch("SELECT name, base_digest, current_version FROM adapters")
        assert [tuple(row) for row in adapters] == [(ADAPTER, model_digest(folder), 1)]
        await remove_pool(conn, pool.id)
    await make_second_pool(dsn, settings, folder)
    async with database.acquire() as conn:
        assert await find_pool(conn, organization.id, NAME) is None
