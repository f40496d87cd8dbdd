"""The projects that may call an adapter of another one of their organization, under its name.

A share of a removed adapter, or of an archived project, has ended, and its name is free for another.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import msgspec

from gateway.db.ids import new_id

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class ShareRow(msgspec.Struct, frozen=True):
    """A share of an adapter."""

    id: str
    project_id: str
    """The project that may call the adapter."""
    created_at: datetime.datetime


_ADAPTER = "SELECT id FROM adapters WHERE project_id = $1 AND name = $2 AND removed_at IS NULL"


async def find_own_adapter(conn: Connection, project_id: str, name: str) -> str | None:
    """Return the id of the project's adapter of this name."""
    adapter_id: str | None = await conn.fetchval(_ADAPTER, project_id, name)
    return adapter_id


_FIND = "SELECT id, project_id, created_at FROM adapter_shares WHERE adapter_id = $1 AND project_id = $2"


async def find_share(conn: Connection, adapter_id: str, project_id: str) -> ShareRow | None:
    """Return the share of an adapter with a project; None where there is none."""
    row = await conn.fetchrow(_FIND, adapter_id, project_id)
    return ShareRow(**row) if row else None


_LIST = "SELECT id, project_id, created_at FROM adapter_shares WHERE adapter_id = $1 ORDER BY created_at, id"


async def list_shares(conn: Connection, adapter_id: str) -> list[ShareRow]:
    """Return the shares of an adapter, oldest first."""
    return [ShareRow(**row) for row in await conn.fetch(_LIST, adapter_id)]


_FREE_NAME = """
    DELETE FROM adapter_shares s USING adapters a, projects p
    WHERE s.project_id = $1 AND s.name = $2 AND a.id = s.adapter_id AND p.id = a.project_id
      AND (a.removed_at IS NOT NULL OR p.archived_at IS NOT NULL)
"""
_CREATE = """
    INSERT INTO adapter_shares (id, adapter_id, project_id, name) VALUES ($1, $2, $3, $4)
    ON CONFLICT DO NOTHING RETURNING id, project_id, created_at
"""


async def create_share(conn: Connection, adapter_id: str, name: str, project_id: str) -> ShareRow | None:
    """Share an adapter with a project.

    Return None if the project has a share of this name or of this adapter already.
    """
    await conn.execute(_FREE_NAME, project_id, name)
    row = await conn.fetchrow(_CREATE, new_id("share"), adapter_id, project_id, name)
    return ShareRow(**row) if row else None


_REMOVE = "DELETE FROM adapter_shares WHERE adapter_id = $1 AND project_id = $2"


async def remove_share(conn: Connection, adapter_id: str, project_id: str) -> None:
    """End the share of an adapter with a project."""
    await conn.execute(_REMOVE, adapter_id, project_id)
