"""An adapter belongs to the base model that it was made for, and never to another."""

from __future__ import annotations

import asyncpg
import pytest

from gateway.db.adapters import adapter_versions, adapters, routes
from gateway.db.adapters.adapters import OtherBase
from gateway.db.adapters.bases import register_base
from gateway.db.organization.organizations import ensure_organization
from gateway.db.organization.projects import create_project
from gateway.db.pool import Database
from tests.gateway.bases import BASE_DIGEST, put_adapter

OTHER_DIGEST = "0de5" * 16


async def make_project(database: Database) -> str:
    async with database.acquire() as conn:
        organization = await ensure_organization(conn, "default")
        project = await create_project(conn, organization.id, "acme")
        assert project is not None
        return project.id


async def test_the_base_of_an_adapter_is_part_of_its_route(database: Database) -> None:
    project_id = await make_project(database)
    async with database.acquire() as conn:
        made, _ = await put_adapter(conn, project_id, "pirate", digest="a" * 64, rank=8, size_bytes=9)
        again, _ = await put_adapter(conn, project_id, "pirate", digest="b" * 64, rank=8, size_bytes=9)
        assert made.base_digest == again.base_digest == BASE_DIGEST
        found = [await routes.find_current(conn, project_id, "pirate")]
        found += [await routes.find_version(conn, project_id, "pirate", 1), *await routes.list_routes(conn, project_id)]
        assert [route and route.base_digest for route in found] == [BASE_DIGEST] * 3


async def test_an_adapters_name_belongs_to_one_base_until_the_adapter_is_removed(database: Database) -> None:
    project_id = await make_project(database)
    content = {"base_digest": OTHER_DIGEST, "digest": "c" * 64, "rank": 8, "size_bytes": 9}
    async with database.acquire() as conn:
        await put_adapter(conn, project_id, "pirate", digest="a" * 64, rank=8, size_bytes=9)
        await register_base(conn, OTHER_DIGEST, "other")
        with pytest.raises(OtherBase):
            await adapter_versions.put_adapter(conn, project_id, "pirate", **content)
        found = await adapters.find_adapter(conn, project_id, "pirate")
        assert found is not None and (found.version, found.digest) == (1, "a" * 64)
        await adapters.remove_adapter(conn, project_id, "pirate")
        made, _ = await adapter_versions.put_adapter(conn, project_id, "pirate", **content)
        assert made.base_digest == OTHER_DIGEST


async def test_a_base_that_is_not_registered_has_no_adapters(database: Database) -> None:
    project_id = await make_project(database)
    async with database.acquire() as conn:
        with pytest.raises(asyncpg.ForeignKeyViolationError):
            await adapter_versions.put_adapter(
                conn, project_id, "pirate", base_digest=OTHER_DIGEST, digest="a" * 64, rank=8, size_bytes=9
            )


async def test_a_base_is_known_by_its_latest_name(database: Database) -> None:
    async with database.acquire() as conn:
        for name in ("first", "first", "second"):
            await register_base(conn, BASE_DIGEST, name)
        assert await conn.fetchval("SELECT array_agg(name) FROM bases") == ["second"]
