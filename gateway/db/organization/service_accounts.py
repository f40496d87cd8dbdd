"""Service accounts: the programs of a project that own keys."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import msgspec

from gateway.db.ids import new_id
from gateway.db.organization.keys import revoke_keys

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class ServiceAccountRow(msgspec.Struct, frozen=True):
    """A service account of a project."""

    id: str
    project_id: str
    name: str
    created_at: datetime.datetime


_NUM = "SELECT count(*) FROM service_accounts WHERE project_id = $1 AND removed_at IS NULL"


async def num_service_accounts(conn: Connection, project_id: str) -> int:
    """Return how many service accounts a project has."""
    return int(await conn.fetchval(_NUM, project_id))


_INSERT = """
    INSERT INTO service_accounts (id, project_id, name) VALUES ($1, $2, $3) RETURNING id, project_id, name, created_at
"""


async def create_service_account(conn: Connection, project_id: str, name: str) -> ServiceAccountRow:
    """Store a new service account of a project."""
    row = await conn.fetchrow(_INSERT, new_id("svc"), project_id, name)
    assert row is not None
    return ServiceAccountRow(**row)


_GET = """
    SELECT id, project_id, name, created_at FROM service_accounts
    WHERE project_id = $1 AND id = $2 AND removed_at IS NULL
"""


async def get_service_account(conn: Connection, project_id: str, account_id: str) -> ServiceAccountRow | None:
    """Return a service account of a project; None where there is none."""
    row = await conn.fetchrow(_GET, project_id, account_id)
    return ServiceAccountRow(**row) if row else None


_LIST = """
    SELECT id, project_id, name, created_at FROM service_accounts
    WHERE project_id = $1 AND removed_at IS NULL
      AND ($2::text IS NULL OR (created_at, id) >
           (SELECT created_at, id FROM service_accounts WHERE project_id = $1 AND id = $2))
    ORDER BY created_at, id LIMIT $3
"""


async def list_service_accounts(
    conn: Connection, project_id: str, *, after: str | None = None, limit: int = 100
) -> list[ServiceAccountRow]:
    """Return service accounts, oldest first, those that follow the account with id `after`."""
    return [ServiceAccountRow(**row) for row in await conn.fetch(_LIST, project_id, after, limit)]


_REMOVE = """
    UPDATE service_accounts SET removed_at = now() WHERE project_id = $1 AND id = $2 AND removed_at IS NULL
"""


async def remove_service_account(conn: Connection, project_id: str, account_id: str) -> list[str]:
    """Remove the account and revoke its keys, in the caller's transaction. Return the ids of these keys."""
    await conn.execute(_REMOVE, project_id, account_id)
    return await revoke_keys(conn, project_id=project_id, owner_service_account_id=account_id)
