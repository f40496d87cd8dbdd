"""What the schema itself holds of adapters' versions, whoever writes: this code, an older gateway, or a mistake."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg
import pytest

from gateway.db.adapters import adapter_versions, adapters, probes
from gateway.db.adapters.adapter_versions import Content
from gateway.db.organization.organizations import ensure_organization
from gateway.db.organization.projects import create_project
from gateway.db.pool import Database

if TYPE_CHECKING:
    from gateway.db.pool import Connection

OLD_UPSERT = """
    INSERT INTO adapters AS a (id, project_id, name, current_version) VALUES ($1, $2, $3, 1)
    ON CONFLICT (project_id, name) WHERE removed_at IS NULL DO UPDATE SET name = excluded.name
    RETURNING a.id, a.current_version
"""
OLD_INSERT = "INSERT INTO adapter_versions (adapter_id, version, digest, rank, size_bytes) VALUES ($1, $2, $3, 8, 9)"
OLD_SET_CURRENT = "UPDATE adapters SET current_version = $2 WHERE id = $1"
"""As gateways of the version before write, which may run beside this one."""


async def old_put(conn: Connection, project_id: str, digest: str) -> None:
    async with conn.transaction():
        row = await conn.fetchrow(OLD_UPSERT, f"adpt_{digest[:4]}", project_id, "pirate")
        assert row is not None
        number = 1 + (await conn.fetchval("SELECT count(*) FROM adapter_versions WHERE adapter_id = $1", row["id"]))
        await conn.execute(OLD_INSERT, row["id"], number, digest)
        await conn.execute(OLD_SET_CURRENT, row["id"], number)


async def make_project(conn: Connection) -> str:
    organization = await ensure_organization(conn, "default")
    project = await create_project(conn, organization.id, "acme")
    assert project is not None
    return project.id


async def test_gateways_of_the_version_before_add_and_promote_as_ever(database: Database) -> None:
    async with database.acquire() as conn:
        project_id = await make_project(conn)
        await old_put(conn, project_id, "a" * 64)
        await old_put(conn, project_id, "b" * 64)
        found = await adapters.find_adapter(conn, project_id, "pirate")
        assert found is not None
        assert (found.version, found.previous_version, found.digest) == (2, 1, "b" * 64)
        # Theirs is a wish like any other: what waited before it does not come after it.
        content = Content("c" * 64, 8, 9, None)
        put = await adapter_versions.put_version(
            conn, project_id, "pirate", content, source="upload", promoted=True, claimed=False
        )
        await old_put(conn, project_id, "d" * 64)
        ready = await probes.set_ready(conn, put.adapter_id, put.version, "{}")
        assert ready is not None and not ready.promoted
        found = await adapters.find_adapter(conn, project_id, "pirate")
        assert found is not None and found.version == 4


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("UPDATE adapter_versions SET digest = repeat('f', 64) WHERE version = 1", "is immutable"),
        ("UPDATE adapter_versions SET version = 7 WHERE version = 3", "is immutable"),
        ("UPDATE adapter_versions SET state = 'ready' WHERE version = 3", "cannot go from inspected to ready"),
        ("UPDATE adapter_versions SET state = 'inspected' WHERE version = 1", "cannot go from ready to inspected"),
        ("UPDATE adapter_versions SET state = 'deleted' WHERE version = 1", "cannot go from ready to deleted"),
        ("UPDATE adapter_versions SET state = 'retired' WHERE version = 2", "is current"),
        ("UPDATE adapters SET current_version = 3", "is not ready"),
    ],
)
async def test_what_is_served_is_ready_and_never_changes(database: Database, change: str, complaint: str) -> None:
    """Of versions 1 (ready), 2 (current) and 3 (inspected)."""
    async with database.acquire() as conn:
        project_id = await make_project(conn)
        for digest in ("a" * 64, "b" * 64):
            await adapter_versions.put_adapter(conn, project_id, "pirate", digest=digest, rank=8, size_bytes=9)
        content = Content("c" * 64, 8, 9, None)
        await adapter_versions.put_version(
            conn, project_id, "pirate", content, source="upload", promoted=True, claimed=False
        )
        with pytest.raises(asyncpg.RaiseError, match=complaint):
            await conn.execute(change)
