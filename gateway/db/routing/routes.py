"""Routes: routing policies of projects and of organizations, each with the versions of its document.

The name of a project's route is a row of `model_aliases`, so that it is no alias's and no experiment's name as well; an
organization's route has its name itself. Resolvers read routes with all other names (`gateway.db.adapters.routes`).
Documents are JSON text here. owner_id: the id of the project or of the organization that owns a route.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import msgspec

from gateway.db.ids import new_id

if TYPE_CHECKING:
    from gateway.db.pool import Connection

MAX_VERSIONS = 100
"""The most versions of a route that are stored; the oldest are deleted, but never the one that answers requests."""


class RouteVersionRow(msgspec.Struct, frozen=True):
    """One version of a route's policy."""

    version: int
    document: str
    created_at: datetime.datetime


class PolicyRow(msgspec.Struct, frozen=True):
    """A route with the policy that answers requests."""

    id: str
    name: str
    version: int
    """The version that answers requests."""
    document: str
    created_at: datetime.datetime
    changed_at: datetime.datetime
    """The time at which another version last began to answer."""


_FIND = """
    SELECT r.id, coalesce(r.name, m.name) AS name, r.version, d.document, r.created_at, r.changed_at
    FROM routes r LEFT JOIN model_aliases m ON m.project_id = r.project_id AND m.route_id = r.id
        JOIN route_versions d ON d.route_id = r.id AND d.version = r.version
    WHERE (r.project_id = $1 OR r.organization_id = $1) AND ($2::text IS NULL OR coalesce(r.name, m.name) = $2)
    ORDER BY r.created_at, r.id
"""


async def find_route(conn: Connection, owner_id: str, name: str) -> PolicyRow | None:
    """Return an owner's route by its name."""
    row = await conn.fetchrow(_FIND, owner_id, name)
    return PolicyRow(**row) if row else None


async def list_owned_routes(conn: Connection, owner_id: str) -> list[PolicyRow]:
    """Return all routes of an owner, the oldest first."""
    return [PolicyRow(**row) for row in await conn.fetch(_FIND, owner_id, None)]


_VERSIONS = """
    SELECT d.version, d.document, d.created_at FROM route_versions d JOIN routes r ON r.id = d.route_id
    WHERE (r.project_id = $1 OR r.organization_id = $1) AND r.id = $2 AND ($3::integer IS NULL OR d.version = $3)
    ORDER BY d.version DESC
"""


async def list_versions(conn: Connection, owner_id: str, route_id: str) -> list[RouteVersionRow]:
    """Return the versions of a route that are kept, the newest first."""
    return [RouteVersionRow(**row) for row in await conn.fetch(_VERSIONS, owner_id, route_id, None)]


async def find_route_version(conn: Connection, owner_id: str, route_id: str, version: int) -> RouteVersionRow | None:
    """Return one version of a route; None where it does not exist, or was deleted."""
    row = await conn.fetchrow(_VERSIONS, owner_id, route_id, version)
    return RouteVersionRow(**row) if row else None


_CREATE = "INSERT INTO routes (id, project_id, version) VALUES ($1, $2, 1)"
_ADD_VERSION = "INSERT INTO route_versions (route_id, version, document) VALUES ($1, $2, $3)"
_TAKE_NAME = """
    INSERT INTO model_aliases (id, project_id, name, target_kind, route_id) VALUES ($1, $2, $3, 'route', $4)
    ON CONFLICT (project_id, name) DO NOTHING RETURNING id
"""


async def create_route(conn: Connection, project_id: str, name: str, document: str) -> bool:
    """Make a project's route with its first version, in the caller's transaction.

    Return False, and the transaction is of no more use, if an alias, an experiment or a route of the project has the
    name.
    """
    route_id = new_id("route")
    await conn.execute(_CREATE, route_id, project_id)
    await conn.execute(_ADD_VERSION, route_id, 1, document)
    return await conn.fetchval(_TAKE_NAME, new_id("alias"), project_id, name, route_id) is not None


_CREATE_SHARED = """
    INSERT INTO routes (id, organization_id, name, version) VALUES ($1, $2, $3, 1)
    ON CONFLICT (organization_id, name) DO NOTHING RETURNING id
"""


async def create_shared_route(conn: Connection, organization_id: str, name: str, document: str) -> bool:
    """Make an organization's route with its first version, in the caller's transaction.

    Return False if the organization has a route of this name.
    """
    route_id = await conn.fetchval(_CREATE_SHARED, new_id("route"), organization_id, name)
    if route_id is None:
        return False
    await conn.execute(_ADD_VERSION, route_id, 1, document)
    return True


_NEXT_VERSION = "SELECT max(version) + 1 FROM route_versions WHERE route_id = $1"
_DROP_VERSIONS = """
    DELETE FROM route_versions d USING routes r
    WHERE r.id = d.route_id AND r.id = $1 AND d.version <> r.version AND d.version <= $2
"""


async def update_route(conn: Connection, owner_id: str, route_id: str, document: str) -> None:
    """Add a new version of a route's policy, which answers from now on.

    The caller's transaction has locked the owner.
    """
    version = await conn.fetchval(_NEXT_VERSION, route_id)
    await conn.execute(_ADD_VERSION, route_id, version, document)
    await set_version(conn, owner_id, route_id, version)
    await conn.execute(_DROP_VERSIONS, route_id, version - MAX_VERSIONS)


_SET_VERSION = """
    UPDATE routes SET version = $3, changed_at = now() WHERE (project_id = $1 OR organization_id = $1) AND id = $2
"""


async def set_version(conn: Connection, owner_id: str, route_id: str, version: int) -> None:
    """Have a stored version of a route answer from now on."""
    await conn.execute(_SET_VERSION, owner_id, route_id, version)


_DROP_NAME = "DELETE FROM model_aliases WHERE project_id = $1 AND route_id = $2"
_REMOVE = "DELETE FROM routes WHERE (project_id = $1 OR organization_id = $1) AND id = $2"


async def remove_route(conn: Connection, owner_id: str, route_id: str) -> None:
    """Remove a route with its versions; its name is free again."""
    await conn.execute(_DROP_NAME, owner_id, route_id)
    await conn.execute(_REMOVE, owner_id, route_id)
