"""The watched folder's memory: the tenant of each folder, and the files of each adapter that were taken in last."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class Tenant(msgspec.Struct, frozen=True):
    """The project that a watched folder belongs to."""

    project_id: str
    organization_id: str


_BOUND = """
    SELECT p.id AS project_id, p.organization_id, p.archived_at IS NOT NULL AS is_archived
    FROM watched_tenants w JOIN projects p ON p.id = w.project_id WHERE w.folder = $1
"""
# An id means one project, so naming a project with another project's id gains nothing.
_FIND = """
    SELECT id AS project_id, organization_id FROM projects
    WHERE archived_at IS NULL AND (id = $1 OR (name = $1 AND NOT EXISTS (SELECT FROM projects WHERE id = $1)))
    LIMIT 2
"""
_BIND = "INSERT INTO watched_tenants (folder, project_id) VALUES ($1, $2)"


async def bind_folder(conn: Connection, folder: str) -> Tenant | None:
    """Return the project of a watched folder; None where it is archived, or where no project belongs to the folder.

    When the folder is first asked for, it is bound to the project whose id it has as its name, or to the only project
    of that name. The binding never changes, even if projects are renamed or archived.
    """
    async with conn.transaction():
        bound = await conn.fetchrow(_BOUND, folder)
        if bound is not None:
            return None if bound["is_archived"] else Tenant(bound["project_id"], bound["organization_id"])
        found = await conn.fetch(_FIND, folder)
        if len(found) != 1:
            return None
        tenant = Tenant(**found[0])
        await conn.execute(_BIND, folder, tenant.project_id)
        return tenant


_FINGERPRINT = "SELECT fingerprint FROM watched_adapters WHERE project_id = $1 AND name = $2"


async def taken_fingerprint(conn: Connection, project_id: str, name: str) -> str | None:
    """Return the fingerprint of the folder's content that was last taken in; None if nothing was."""
    fingerprint: str | None = await conn.fetchval(_FINGERPRINT, project_id, name)
    return fingerprint


_NOTE = """
    INSERT INTO watched_adapters (project_id, name, fingerprint) VALUES ($1, $2, $3)
    ON CONFLICT (project_id, name) DO UPDATE SET fingerprint = excluded.fingerprint, taken_at = now()
"""


async def note_taken(conn: Connection, project_id: str, name: str, fingerprint: str) -> None:
    """Record which files of an adapter were taken in last. fingerprint: the names, sizes and times of the files."""
    await conn.execute(_NOTE, project_id, name, fingerprint)
