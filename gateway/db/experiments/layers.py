"""Layers: sets of experiments of a project that have no unit in common, since each owns slots of its own."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import msgspec

from gateway.domain.experiments.allocation import Owner

if TYPE_CHECKING:
    import asyncpg

    from gateway.db.pool import Connection


class LayerRow(msgspec.Struct, frozen=True):
    """A layer of a project."""

    name: str
    created_at: datetime.datetime
    owners: list[Owner]
    """The experiments that own slots, by name."""


_LIST = """
    SELECT l.name, l.created_at,
           coalesce(array_agg(e.name ORDER BY e.name) FILTER (WHERE e.id IS NOT NULL), '{}') AS names,
           coalesce(array_agg(e.state ORDER BY e.name) FILTER (WHERE e.id IS NOT NULL), '{}') AS states,
           coalesce(array_agg(e.slots ORDER BY e.name) FILTER (WHERE e.id IS NOT NULL), '{}') AS slots
    FROM experiment_layers l LEFT JOIN experiments e ON (e.project_id, e.layer) = (l.project_id, l.name)
        AND e.state IN ('running', 'paused', 'stopped')
    WHERE l.project_id = $1 AND ($2::text IS NULL OR l.name = $2)
    GROUP BY l.name, l.created_at ORDER BY l.created_at, l.name
"""


async def list_layers(conn: Connection, project_id: str) -> list[LayerRow]:
    """Return the layers of a project, oldest first."""
    return [_layer(row) for row in await conn.fetch(_LIST, project_id, None)]


async def find_layer(conn: Connection, project_id: str, name: str) -> LayerRow | None:
    """Return the project's layer of this name."""
    row = await conn.fetchrow(_LIST, project_id, name)
    return _layer(row) if row else None


_CREATE = """
    INSERT INTO experiment_layers (project_id, name, seed) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING RETURNING name
"""


async def create_layer(conn: Connection, project_id: str, name: str, seed: bytes) -> bool:
    """Make a layer; return False where the project has one of this name."""
    return await conn.fetchval(_CREATE, project_id, name, seed) is not None


_LOCK = "SELECT FROM experiment_layers WHERE project_id = $1 AND name = $2 FOR UPDATE"
_OWNERS = """
    SELECT name, state, slots FROM experiments
    WHERE project_id = $1 AND layer = $2 AND state IN ('running', 'paused', 'stopped')
"""


async def lock_slots(conn: Connection, project_id: str, name: str) -> list[Owner]:
    """Return the experiments that own slots of a layer; nobody else takes any until the transaction ends."""
    await conn.execute(_LOCK, project_id, name)
    return [Owner(**row) for row in await conn.fetch(_OWNERS, project_id, name)]


_USED = "SELECT EXISTS (SELECT FROM experiments WHERE project_id = $1 AND layer = $2)"
_DELETE = "DELETE FROM experiment_layers WHERE project_id = $1 AND name = $2"


async def is_layer_used(conn: Connection, project_id: str, name: str) -> bool:
    """Tell whether any experiment, a draft or an archived one too, names the layer."""
    return bool(await conn.fetchval(_USED, project_id, name))


async def delete_layer(conn: Connection, project_id: str, name: str) -> None:
    """Remove a layer that no experiment names."""
    await conn.execute(_DELETE, project_id, name)


def _layer(row: asyncpg.Record) -> LayerRow:
    owners = [Owner(*each) for each in zip(row["names"], row["states"], row["slots"], strict=True)]
    return LayerRow(row["name"], row["created_at"], owners)
