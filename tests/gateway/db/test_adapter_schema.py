"""Promises that the schema itself keeps about adapters and their versions, whichever code writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg
import pytest

from gateway.db.adapters import adapter_versions
from gateway.db.adapters.adapter_versions import Content
from gateway.db.organization.organizations import ensure_organization
from gateway.db.organization.projects import create_project
from gateway.db.pool import Database
from tests.gateway.bases import BASE_DIGEST, put_adapter

if TYPE_CHECKING:
    from gateway.db.pool import Connection


async def make_project(conn: Connection) -> str:
    organization = await ensure_organization(conn, "default")
    project = await create_project(conn, organization.id, "acme")
    assert project is not None
    return project.id


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
        ("UPDATE adapters SET base_digest = NULL", "belongs to base"),
        ("INSERT INTO adapters (id, project_id, name) SELECT 'a', project_id, 'b' FROM adapters", "has no base"),
    ],
)
async def test_what_is_served_is_ready_and_never_changes(database: Database, change: str, complaint: str) -> None:
    """Version 1 is ready, version 2 is current, version 3 is inspected."""
    async with database.acquire() as conn:
        project_id = await make_project(conn)
        for digest in ("a" * 64, "b" * 64):
            await put_adapter(conn, project_id, "pirate", digest=digest, rank=8, size_bytes=9)
        content = Content("c" * 64, 8, 9, None)
        await adapter_versions.put_version(
            conn,
            project_id,
            "pirate",
            content,
            base_digest=BASE_DIGEST,
            source="upload",
            promoted=True,
            claimed=False,
        )
        with pytest.raises(asyncpg.RaiseError, match=complaint):
            await conn.execute(change)
