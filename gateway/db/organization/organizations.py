"""Organizations, and the installation they share. Most installations have one organization, the operator's."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import msgspec

from gateway.db.ids import new_id

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class OrganizationRow(msgspec.Struct, frozen=True):
    """An organization, and since when it is suspended, if it is."""

    id: str
    name: str
    created_at: datetime.datetime
    suspended_at: datetime.datetime | None


_ENSURE = """
    INSERT INTO organizations (id, name) VALUES ($1, $2)
    ON CONFLICT (name) DO UPDATE SET name = excluded.name
    RETURNING id, name, created_at, suspended_at
"""


async def ensure_organization(conn: Connection, name: str) -> OrganizationRow:
    """Return the organization of this name, created if it is new."""
    row = await conn.fetchrow(_ENSURE, new_id("org"), name)
    assert row is not None
    return OrganizationRow(**row)


_FIND = "SELECT id, name, created_at, suspended_at FROM organizations WHERE name = $1"


async def find_organization(conn: Connection, name: str) -> OrganizationRow | None:
    """Return an organization by its name; None where there is none."""
    row = await conn.fetchrow(_FIND, name)
    return OrganizationRow(**row) if row else None


_FIRST = "SELECT id, name, created_at, suspended_at FROM organizations ORDER BY created_at, id LIMIT 1"


async def first_organization(conn: Connection) -> OrganizationRow | None:
    """Return the oldest organization, the operator's own; None where there is none yet."""
    row = await conn.fetchrow(_FIRST)
    return OrganizationRow(**row) if row else None


_GET = "SELECT id, name, created_at, suspended_at FROM organizations WHERE id = $1"


async def get_organization(conn: Connection, organization_id: str) -> OrganizationRow:
    """Return an organization that is known to exist."""
    row = await conn.fetchrow(_GET, organization_id)
    assert row is not None, "organizations are never deleted"
    return OrganizationRow(**row)


_LOCK = "SELECT id, name, created_at, suspended_at FROM organizations WHERE id = $1 FOR NO KEY UPDATE"


async def lock_organization(conn: Connection, organization_id: str) -> OrganizationRow:
    """Return the organization, locked against changes by others until the transaction ends."""
    row = await conn.fetchrow(_LOCK, organization_id)
    assert row is not None, "organizations are never deleted"
    return OrganizationRow(**row)


_SUSPEND = """
    UPDATE organizations SET suspended_at = CASE WHEN $2 THEN now() END WHERE id = $1
    RETURNING id, name, created_at, suspended_at
"""


async def set_organization_suspended(conn: Connection, organization_id: str, suspended: bool) -> OrganizationRow:
    """Suspend an organization, or resume it."""
    row = await conn.fetchrow(_SUSPEND, organization_id, suspended)
    assert row is not None
    return OrganizationRow(**row)


async def installation_id(conn: Connection) -> str:
    """Return the identity of this database, the same for every gateway that uses it."""
    return str(await conn.fetchval("SELECT id FROM installation"))
