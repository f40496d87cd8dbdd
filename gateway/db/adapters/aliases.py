"""Aliases: a project's own names of models.

Each stands for a version of one of its adapters, for the base model of a pool, for an experiment, or for a routing
policy (`gateway.db.routing`). Aliases of an adapter's version are removed with the adapter (`adapters.remove_adapter`).
A name stands for an experiment from its start on, and for the target of the chosen arm once that is decided
(`gateway.db.experiments.arms`).
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Literal

import msgspec

from gateway.db.ids import new_id

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class AliasRow(msgspec.Struct, frozen=True):
    """A project's own name of a model, and the model that it means."""

    id: str
    name: str
    target_kind: Literal["version", "pool", "experiment", "route"]
    adapter: str | None
    """The name of the adapter; None for other kinds."""
    version: int | None
    pool: str | None
    """The name of the pool whose base model the alias means; for a version, the pool that an experiment chose, if one
    did."""
    experiment: str | None
    """The name of the experiment; None for other kinds."""
    has_treatment: bool
    """True if requests get the defaults of an experiment's arm that was chosen."""
    created_at: datetime.datetime
    moved_at: datetime.datetime
    """The time at which the alias got its present target."""


_HAS_ADAPTER = "SELECT EXISTS (SELECT FROM adapters WHERE project_id = $1 AND name = $2 AND removed_at IS NULL)"


async def has_adapter(conn: Connection, project_id: str, name: str) -> bool:
    """Tell whether a project has an adapter of this name."""
    return bool(await conn.fetchval(_HAS_ADAPTER, project_id, name))


# The version's row is locked, so that it stays ready as long as the caller's transaction lasts.
_TARGET = """
    SELECT a.id FROM adapters a JOIN adapter_versions v ON v.adapter_id = a.id
    WHERE a.project_id = $1 AND a.name = $2 AND a.removed_at IS NULL AND v.version = $3 AND v.state = 'ready'
    FOR SHARE OF v
"""


async def find_target(conn: Connection, project_id: str, adapter: str, version: int) -> str | None:
    """Return the id of the project's adapter, or None where this version of it cannot be served."""
    adapter_id: str | None = await conn.fetchval(_TARGET, project_id, adapter, version)
    return adapter_id


_FIND = """
    SELECT m.id, m.name, m.target_kind, a.name AS adapter, m.version, p.name AS pool, e.name AS experiment,
           m.treatment IS NOT NULL AS has_treatment, m.created_at, m.moved_at
    FROM model_aliases m LEFT JOIN adapters a ON a.id = m.adapter_id LEFT JOIN pools p ON p.id = m.pool_id
        LEFT JOIN experiments e ON e.id = m.experiment_id
    WHERE m.project_id = $1 AND ($2::text IS NULL OR m.name = $2)
    ORDER BY m.created_at, m.id
"""


async def find_alias(conn: Connection, project_id: str, name: str) -> AliasRow | None:
    """Return a project's alias by its name; None where there is none."""
    row = await conn.fetchrow(_FIND, project_id, name)
    return AliasRow(**row) if row else None


async def list_aliases(conn: Connection, project_id: str) -> list[AliasRow]:
    """Return the project's aliases, oldest first."""
    return [AliasRow(**row) for row in await conn.fetch(_FIND, project_id, None)]


_CREATE = """
    INSERT INTO model_aliases (id, project_id, name, target_kind, adapter_id, version)
    VALUES ($1, $2, $3, 'version', $4, $5)
    ON CONFLICT (project_id, name) DO NOTHING RETURNING id
"""


async def create_alias(conn: Connection, project_id: str, name: str, adapter_id: str, version: int) -> bool:
    """Create an alias. Return False if the project has an alias of this name."""
    return await conn.fetchval(_CREATE, new_id("alias"), project_id, name, adapter_id, version) is not None


_MOVE = """
    UPDATE model_aliases SET target_kind = 'version', adapter_id = $3, version = $4, pool_id = NULL, treatment = NULL,
        moved_at = now()
    WHERE project_id = $1 AND name = $2
"""


async def move_alias(conn: Connection, project_id: str, name: str, adapter_id: str, version: int) -> None:
    """Point an alias that was not made by an experiment at another version."""
    await conn.execute(_MOVE, project_id, name, adapter_id, version)


_REMOVE = "DELETE FROM model_aliases WHERE project_id = $1 AND name = $2"


async def remove_alias(conn: Connection, project_id: str, name: str) -> None:
    """Delete a project's alias."""
    await conn.execute(_REMOVE, project_id, name)
