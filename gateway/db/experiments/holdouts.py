"""Holdouts: units of a project that take part in no experiment that names the holdout."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class HoldoutRow(msgspec.Struct, frozen=True):
    """A holdout of a project."""

    name: str
    size: int
    """The part of the units, in parts of 10,000."""
    created_at: datetime.datetime


_LIST = """
    SELECT name, size, created_at FROM experiment_holdouts
    WHERE project_id = $1 AND ($2::text IS NULL OR name = $2) ORDER BY created_at, name
"""


async def list_holdouts(conn: Connection, project_id: str) -> list[HoldoutRow]:
    """Return the holdouts of a project, oldest first."""
    return [HoldoutRow(**row) for row in await conn.fetch(_LIST, project_id, None)]


async def find_holdout(conn: Connection, project_id: str, name: str) -> HoldoutRow | None:
    """Return the project's holdout of this name."""
    row = await conn.fetchrow(_LIST, project_id, name)
    return HoldoutRow(**row) if row else None


_CREATE = """
    INSERT INTO experiment_holdouts (project_id, name, seed, size) VALUES ($1, $2, $3, $4)
    ON CONFLICT DO NOTHING RETURNING name
"""


async def create_holdout(conn: Connection, project_id: str, name: str, seed: bytes, size: int) -> bool:
    """Make a holdout; return False where the project has one of this name."""
    return await conn.fetchval(_CREATE, project_id, name, seed, size) is not None


_USED = "SELECT EXISTS (SELECT FROM experiments WHERE project_id = $1 AND holdout = $2)"
_DELETE = "DELETE FROM experiment_holdouts WHERE project_id = $1 AND name = $2"


async def is_holdout_used(conn: Connection, project_id: str, name: str) -> bool:
    """Tell whether any experiment, a draft or an archived one too, names the holdout."""
    return bool(await conn.fetchval(_USED, project_id, name))


async def delete_holdout(conn: Connection, project_id: str, name: str) -> None:
    """Remove a holdout that no experiment names."""
    await conn.execute(_DELETE, project_id, name)
