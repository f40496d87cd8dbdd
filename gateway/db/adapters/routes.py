"""The adapters' versions that a project may call: its own, those of its aliases, and what others share with it.

Read by every gateway's resolver; nothing here writes. A version that is not ready is not there.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class RouteRow(msgspec.Struct, frozen=True):
    """A version to serve. project_id: of its owner. alias: the name it is known by, where that is one. base_digest: the
    digest of the adapter's base model; None only until a base adopts the adapter (`bases`).

    created_at: of what the project knows it by, be that an adapter, an alias or a share. defaults: JSON text.
    """

    adapter_id: str
    project_id: str
    name: str
    version: int
    digest: str
    defaults: str
    created_at: datetime.datetime
    alias: str | None
    is_shared: bool
    base_digest: str | None


# A project's own adapter of the name wins once it has a version to serve. What an archived project shared has ended.
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
    """The current version of the adapter that the project knows by this name."""
    row = await conn.fetchrow(_CURRENT, project_id, name)
    return RouteRow(**row) if row else None


_VERSION = """
    SELECT a.id AS adapter_id, a.project_id, a.name, v.version, v.digest, a.defaults, a.created_at,
           NULL AS alias, false AS is_shared, a.base_digest
    FROM adapters a JOIN adapter_versions v ON v.adapter_id = a.id
    WHERE a.project_id = $1 AND a.name = $2 AND v.version = $3 AND a.removed_at IS NULL AND v.state = 'ready'
"""


async def find_version(conn: Connection, project_id: str, name: str, version: int) -> RouteRow | None:
    """A version of the project's own adapter: of a shared one, the numbers are its owner's."""
    row = await conn.fetchrow(_VERSION, project_id, name, version)
    return RouteRow(**row) if row else None


_ALIAS = """
    SELECT a.id AS adapter_id, a.project_id, a.name, v.version, v.digest, a.defaults, m.created_at,
           m.name AS alias, false AS is_shared, a.base_digest
    FROM model_aliases m JOIN adapters a ON a.id = m.adapter_id
        JOIN adapter_versions v ON v.adapter_id = m.adapter_id AND v.version = m.version
    WHERE m.project_id = $1 AND m.name = $2 AND a.project_id = $1 AND a.removed_at IS NULL AND v.state = 'ready'
"""


async def find_alias_target(conn: Connection, project_id: str, alias: str) -> RouteRow | None:
    row = await conn.fetchrow(_ALIAS, project_id, alias)
    return RouteRow(**row) if row else None


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
            AND NOT EXISTS (SELECT FROM own WHERE own.name = a.name)),
    aliased AS (
        SELECT a.id, a.project_id, a.name, v.version, v.digest, a.defaults, m.created_at, m.name, false,
               a.base_digest, 2
        FROM model_aliases m JOIN adapters a ON a.id = m.adapter_id
            JOIN adapter_versions v ON v.adapter_id = m.adapter_id AND v.version = m.version
        WHERE m.project_id = $1 AND a.project_id = $1 AND a.removed_at IS NULL AND v.state = 'ready')
    SELECT adapter_id, project_id, name, version, digest, defaults, created_at, alias, is_shared, base_digest
    FROM (SELECT * FROM own UNION ALL SELECT * FROM shared UNION ALL SELECT * FROM aliased) callable
    ORDER BY part, created_at, name, alias
"""


async def list_routes(conn: Connection, project_id: str) -> list[RouteRow]:
    """The current version of every adapter that the project can call, its own first, then its aliases; oldest first."""
    return [RouteRow(**row) for row in await conn.fetch(_LIST, project_id)]
