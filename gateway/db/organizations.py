"""Organizations, and the installation they share. Most installations have one organization, the operator's."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import msgspec

from gateway.db.ids import new_id

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class OrganizationRow(msgspec.Struct, frozen=True):
    id: str
    name: str
    created_at: datetime.datetime


_ENSURE = """
    INSERT INTO organizations (id, name) VALUES ($1, $2)
    ON CONFLICT (name) DO UPDATE SET name = excluded.name
    RETURNING id, name, created_at
"""


async def ensure_organization(conn: Connection, name: str) -> OrganizationRow:
    """The organization of this name, created if it is new."""
    row = await conn.fetchrow(_ENSURE, new_id("org"), name)
    assert row is not None
    return OrganizationRow(**row)


async def installation_id(conn: Connection) -> str:
    """Identity of this database, the same for every gateway that uses it."""
    return str(await conn.fetchval("SELECT id FROM installation"))
