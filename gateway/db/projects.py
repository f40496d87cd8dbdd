"""Projects. A tenant is a project: keys, adapters and usage belong to one."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import msgspec

from gateway.db.ids import new_id

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class ProjectRow(msgspec.Struct, frozen=True):
    id: str
    organization_id: str
    name: str
    created_at: datetime.datetime


_INSERT = """
    INSERT INTO projects (id, organization_id, name) VALUES ($1, $2, $3)
    ON CONFLICT (organization_id, name) DO NOTHING
    RETURNING id, organization_id, name, created_at
"""


async def create_project(conn: Connection, organization_id: str, name: str) -> ProjectRow | None:
    """A new project, or None if the organization has one of this name."""
    row = await conn.fetchrow(_INSERT, new_id("proj"), organization_id, name)
    return ProjectRow(**row) if row else None


_GET = "SELECT id, organization_id, name, created_at FROM projects WHERE organization_id = $1 AND id = $2"


async def get_project(conn: Connection, organization_id: str, project_id: str) -> ProjectRow | None:
    row = await conn.fetchrow(_GET, organization_id, project_id)
    return ProjectRow(**row) if row else None


_FIND = "SELECT id, organization_id, name, created_at FROM projects WHERE organization_id = $1 AND name = $2"


async def find_project(conn: Connection, organization_id: str, name: str) -> ProjectRow | None:
    row = await conn.fetchrow(_FIND, organization_id, name)
    return ProjectRow(**row) if row else None


_LIST = """
    SELECT id, organization_id, name, created_at FROM projects
    WHERE organization_id = $1
      AND ($2::text IS NULL OR (created_at, id) >
           (SELECT created_at, id FROM projects WHERE organization_id = $1 AND id = $2))
    ORDER BY created_at, id LIMIT $3
"""


async def list_projects(
    conn: Connection, organization_id: str, *, after: str | None = None, limit: int = 100
) -> list[ProjectRow]:
    """Oldest first, those that follow the project with id `after`; none if that one does not exist."""
    return [ProjectRow(**row) for row in await conn.fetch(_LIST, organization_id, after, limit)]
