"""The demo's second pool is made once, with its adapter, and what an operator removes does not come back."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config import model_digest
from gateway.db.organization.organizations import ensure_organization
from gateway.db.organization.projects import create_project
from gateway.db.pool import Database
from gateway.db.pools.pools import find_pool, remove_pool
from gateway.pools.first_pool import ORGANIZATION
from gateway.serve.second_pool import ADAPTER, ADAPTER_FOLDER, NAME, TENANT, make_second_pool
from gateway.settings import Settings
from tests.adapters.folders import write_adapter
from tests.gateway.model_folder import make_model_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A prepared model with its adapter inside."""
    folder = make_model_folder(tmp_path / "model")
    write_adapter(folder / ADAPTER_FOLDER)
    return folder


async def test_it_is_made_once_and_stays_removed(dsn: str, database: Database, folder: Path, tmp_path: Path) -> None:
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
