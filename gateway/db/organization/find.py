"""Finds an organization's objects by a part of their names, ids or addresses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from gateway.db.pool import Connection

Kind = Literal["project", "api_key", "adapter", "experiment", "user", "pool"]


class SearchResult(msgspec.Struct, frozen=True):
    """One result of a search: an object of the organization."""

    kind: Kind
    id: str
    name: str
    """The name as people call it."""
    project_id: str | None
    """The project of the object; None for users and pools."""


# strpos: the term is text, and no pattern. Names that begin with it come first, then the shortest ones.
_PROJECTS = """
    SELECT 'project' AS kind, id, name, id AS project_id FROM projects
    WHERE organization_id = $1 AND ($2::text[] IS NULL OR id = ANY ($2)) AND archived_at IS NULL
      AND (strpos(lower(name), $3) > 0 OR id = $3)
    ORDER BY strpos(lower(name), $3), length(name), name LIMIT $4
"""
_KEYS = """
    SELECT 'api_key' AS kind, k.id, k.name, k.project_id FROM api_keys k JOIN projects p ON p.id = k.project_id
    WHERE p.organization_id = $1 AND ($2::text[] IS NULL OR p.id = ANY ($2)) AND p.archived_at IS NULL
      AND k.revoked_at IS NULL AND (strpos(lower(k.name), $3) > 0 OR strpos(lower(k.public), $3) > 0 OR k.id = $3)
    ORDER BY strpos(lower(k.name), $3) = 0, length(k.name), k.name, k.id LIMIT $4
"""
_ADAPTERS = """
    SELECT 'adapter' AS kind, a.id, a.name, a.project_id FROM adapters a JOIN projects p ON p.id = a.project_id
    WHERE p.organization_id = $1 AND ($2::text[] IS NULL OR p.id = ANY ($2)) AND p.archived_at IS NULL
      AND a.removed_at IS NULL AND (strpos(lower(a.name), $3) > 0 OR a.id = $3)
    ORDER BY strpos(lower(a.name), $3), length(a.name), a.name, a.id LIMIT $4
"""
_EXPERIMENTS = """
    SELECT 'experiment' AS kind, e.id, e.name, e.project_id FROM experiments e JOIN projects p ON p.id = e.project_id
    WHERE p.organization_id = $1 AND ($2::text[] IS NULL OR p.id = ANY ($2)) AND p.archived_at IS NULL
      AND (strpos(e.name, $3) > 0 OR strpos(lower(e.model), $3) > 0 OR e.id = $3)
    ORDER BY strpos(e.name, $3) = 0, length(e.name), e.name, e.id LIMIT $4
"""
_USERS = """
    SELECT 'user' AS kind, id, email AS name, NULL AS project_id FROM users
    WHERE organization_id = $1 AND removed_at IS NULL
      AND (strpos(email, $2) > 0 OR strpos(lower(name), $2) > 0 OR id = $2)
    ORDER BY strpos(email, $2) = 0, length(email), email LIMIT $3
"""
_POOLS = """
    SELECT 'pool' AS kind, id, name, NULL AS project_id FROM pools
    WHERE organization_id = $1 AND removed_at IS NULL AND (strpos(lower(name), $2) > 0 OR id = $2)
    ORDER BY strpos(lower(name), $2), length(name), name LIMIT $3
"""


async def find_projects(
    conn: Connection, organization_id: str, project_ids: Sequence[str] | None, text: str, limit: int
) -> list[SearchResult]:
    """Return projects whose name holds a text.

    text: in lower case. project_ids: the projects to look at; None: all of the organization.
    """
    only = None if project_ids is None else list(project_ids)
    return [SearchResult(**row) for row in await conn.fetch(_PROJECTS, organization_id, only, text, limit)]


async def find_keys(
    conn: Connection, organization_id: str, project_ids: Sequence[str] | None, text: str, limit: int
) -> list[SearchResult]:
    """Return keys whose name, or the part of the key that is shown, holds a text. Arguments as for `find_projects`."""
    only = None if project_ids is None else list(project_ids)
    return [SearchResult(**row) for row in await conn.fetch(_KEYS, organization_id, only, text, limit)]


async def find_adapters(
    conn: Connection, organization_id: str, project_ids: Sequence[str] | None, text: str, limit: int
) -> list[SearchResult]:
    """Return adapters whose name holds a text. Arguments as for `find_projects`."""
    only = None if project_ids is None else list(project_ids)
    return [SearchResult(**row) for row in await conn.fetch(_ADAPTERS, organization_id, only, text, limit)]


async def find_experiments(
    conn: Connection, organization_id: str, project_ids: Sequence[str] | None, text: str, limit: int
) -> list[SearchResult]:
    """Find experiments by a part of their names, or of the model strings by which they are asked for.

    project_ids: as for `find_projects`.
    """
    only = None if project_ids is None else list(project_ids)
    return [SearchResult(**row) for row in await conn.fetch(_EXPERIMENTS, organization_id, only, text, limit)]


async def find_users(conn: Connection, organization_id: str, text: str, limit: int) -> list[SearchResult]:
    """Return users whose name or address holds a text, which is in lower case."""
    return [SearchResult(**row) for row in await conn.fetch(_USERS, organization_id, text, limit)]


async def find_pools(conn: Connection, organization_id: str, text: str, limit: int) -> list[SearchResult]:
    """Return pools whose name holds a text, which is in lower case."""
    return [SearchResult(**row) for row in await conn.fetch(_POOLS, organization_id, text, limit)]
