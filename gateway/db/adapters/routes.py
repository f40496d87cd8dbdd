"""The adapters' versions that a project may call: its own, those that its names stand for, and those shared with it.

Read by every gateway's resolver; nothing here writes. A version that is not ready is not there.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class RouteRow(msgspec.Struct, frozen=True):
    """A version that a project may call."""

    adapter_id: str
    project_id: str
    """The project that owns the adapter."""
    name: str
    version: int
    digest: str
    defaults: str
    """The adapter's defaults, as JSON text."""
    created_at: datetime.datetime
    """The time at which the project's adapter, alias or share was made."""
    alias: str | None
    """The alias by which the project knows the version, if there is one."""
    is_shared: bool
    base_digest: str | None
    """The digest of the adapter's base model; None only until a base adopts the adapter (`bases`)."""


# A project's own adapter of the name wins once it has a version to serve. The shares of an archived project have ended.
_CURRENT = """
    SELECT a.id AS adapter_id, a.project_id, a.name, v.version, v.digest, a.defaults, a.created_at,
           NULL AS alias, false AS is_shared, a.base_digest
    FROM adapters a JOIN adapter_versions v ON v.adapter_id = a.id AND v.version = a.current_version
    WHERE a.project_id = $1 AND a.name = $2 AND a.removed_at IS NULL AND v.state = 'ready'
    UNION ALL
    SELECT a.id, a.project_id, a.name, v.version, v.digest, a.defaults, s.created_at, NULL, true, a.base_digest
    FROM adapter_shares s JOIN adapters a ON a.id = s.adapter_id JOIN projects p ON p.id = a.project_id
        JOIN adapter_versions v ON v.adapter_id = a.id AND v.version = a.current_version
    WHERE s.project_id = $1 AND s.name = $2 AND a.removed_at IS NULL AND p.archived_at IS NULL AND v.state = 'ready'
    ORDER BY is_shared LIMIT 1
"""


async def find_current(conn: Connection, project_id: str, name: str) -> RouteRow | None:
    """Return the current version of the adapter that the project knows by this name."""
    row = await conn.fetchrow(_CURRENT, project_id, name)
    return RouteRow(**row) if row else None


_VERSION = """
    SELECT a.id AS adapter_id, a.project_id, a.name, v.version, v.digest, a.defaults, a.created_at,
           NULL AS alias, false AS is_shared, a.base_digest
    FROM adapters a JOIN adapter_versions v ON v.adapter_id = a.id
    WHERE a.project_id = $1 AND a.name = $2 AND v.version = $3 AND a.removed_at IS NULL AND v.state = 'ready'
"""


async def find_version(conn: Connection, project_id: str, name: str, version: int) -> RouteRow | None:
    """Return a version of the project's own adapter.

    Versions of a shared adapter are not found: only the owner may name them by number.
    """
    row = await conn.fetchrow(_VERSION, project_id, name, version)
    return RouteRow(**row) if row else None


class NamedTarget(msgspec.Struct, frozen=True):
    """The target of a project's own name: one of a version, the base model of a pool, an experiment, and a policy."""

    name: str
    created_at: datetime.datetime
    """The time when the name was made."""
    treatment: str | None
    """The changes to requests by the name, beside the model, as JSON (`treatment.Treatment`)."""
    version: RouteRow | None = None
    pool: str | None = None
    """The name of the pool; for a version, the pool that is to serve it if it can, or None for any."""
    experiment_id: str | None = None
    policy: NamedPolicy | None = None
    is_shared: bool = False
    """True where the organization owns the name, and not the project."""


class NamedPolicy(msgspec.Struct, frozen=True):
    """The version of a routing policy that answers requests."""

    route_id: str
    version: int
    document: str
    """The policy as JSON text."""


# A version that cannot be served, and a pool that was removed, are not there.
_NAMES = """
    SELECT m.name AS alias, m.target_kind, m.created_at, m.treatment, m.experiment_id, p.name AS pool,
           a.id AS adapter_id, a.project_id, a.name, v.version, v.digest, a.defaults, a.base_digest,
           m.route_id, r.version AS route_version, d.document
    FROM model_aliases m
        LEFT JOIN pools p ON p.id = m.pool_id AND p.removed_at IS NULL
        LEFT JOIN adapters a ON a.id = m.adapter_id AND a.project_id = m.project_id AND a.removed_at IS NULL
        LEFT JOIN adapter_versions v ON v.adapter_id = a.id AND v.version = m.version AND v.state = 'ready'
        LEFT JOIN routes r ON r.id = m.route_id
        LEFT JOIN route_versions d ON d.route_id = r.id AND d.version = r.version
    WHERE m.project_id = $1 AND ($2::text IS NULL OR m.name = $2)
    ORDER BY m.created_at, a.name, m.name
"""


async def find_named(conn: Connection, project_id: str, name: str) -> NamedTarget | None:
    """Return the target of a project's own name; None where there is no such name, or nothing that can be served."""
    row = await conn.fetchrow(_NAMES, project_id, name)
    return None if row is None else _own_target(row)


# A name of a project's own hides the organization's, also one that stands for nothing that can be served.
_SHARED = """
    SELECT r.id AS route_id, r.name, r.created_at, r.version, d.document
    FROM routes r JOIN route_versions d ON d.route_id = r.id AND d.version = r.version
    WHERE r.organization_id = $1 AND ($3::text IS NULL OR r.name = $3)
      AND NOT EXISTS (SELECT FROM model_aliases m WHERE m.project_id = $2 AND m.name = r.name)
    ORDER BY r.created_at, r.name
"""


async def find_shared(conn: Connection, organization_id: str, project_id: str, name: str) -> NamedTarget | None:
    """Return the organization's route of a name, unless the project itself has the name."""
    row = await conn.fetchrow(_SHARED, organization_id, project_id, name)
    return None if row is None else _shared_target(row)


async def list_shared(conn: Connection, organization_id: str, project_id: str) -> list[NamedTarget]:
    """Return the organization's routes, the oldest first, without those whose name the project has itself."""
    return [_shared_target(row) for row in await conn.fetch(_SHARED, organization_id, project_id, None)]


def _shared_target(row: Any) -> NamedTarget:
    policy = NamedPolicy(row["route_id"], row["version"], row["document"])
    return NamedTarget(row["name"], row["created_at"], None, policy=policy, is_shared=True)


async def list_named(conn: Connection, project_id: str) -> list[NamedTarget]:
    """Return all names of a project that stand for something that can be served, oldest first."""
    rows = await conn.fetch(_NAMES, project_id, None)
    return [named for row in rows if (named := _own_target(row)) is not None]


def _own_target(row: Any) -> NamedTarget | None:
    name = NamedTarget(row["alias"], row["created_at"], row["treatment"])
    match row["target_kind"]:
        case "version" if row["digest"] is not None:
            fields = {field: row[field] for field in RouteRow.__struct_fields__ if field != "is_shared"}
            version = RouteRow(**fields, is_shared=False)
            return msgspec.structs.replace(name, version=version, pool=row["pool"])
        case "pool" if row["pool"] is not None:
            return msgspec.structs.replace(name, pool=row["pool"])
        case "experiment":
            return msgspec.structs.replace(name, experiment_id=row["experiment_id"])
        case "route":
            policy = NamedPolicy(row["route_id"], row["route_version"], row["document"])
            return msgspec.structs.replace(name, policy=policy)
    return None


_LIST = """
    WITH own AS (
        SELECT a.id AS adapter_id, a.project_id, a.name, v.version, v.digest, a.defaults, a.created_at,
               NULL::text AS alias, false AS is_shared, a.base_digest, 0 AS part
        FROM adapters a JOIN adapter_versions v ON v.adapter_id = a.id AND v.version = a.current_version
        WHERE a.project_id = $1 AND a.removed_at IS NULL AND v.state = 'ready'),
    shared AS (
        SELECT a.id, a.project_id, a.name, v.version, v.digest, a.defaults, s.created_at, NULL::text, true,
               a.base_digest, 1
        FROM adapter_shares s JOIN adapters a ON a.id = s.adapter_id JOIN projects p ON p.id = a.project_id
            JOIN adapter_versions v ON v.adapter_id = a.id AND v.version = a.current_version
        WHERE s.project_id = $1 AND a.removed_at IS NULL AND p.archived_at IS NULL AND v.state = 'ready'
            AND NOT EXISTS (SELECT FROM own WHERE own.name = a.name))
    SELECT adapter_id, project_id, name, version, digest, defaults, created_at, alias, is_shared, base_digest
    FROM (SELECT * FROM own UNION ALL SELECT * FROM shared) callable
    ORDER BY part, created_at, name
"""


async def list_routes(conn: Connection, project_id: str) -> list[RouteRow]:
    """Return the current version of every adapter that the project can call: its own first, and the oldest first."""
    return [RouteRow(**row) for row in await conn.fetch(_LIST, project_id)]
