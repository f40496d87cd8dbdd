"""The roles of users in projects."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import msgspec

from gateway.db.organization.keys import announce_keys_of, revoke_keys
from gateway.domain.tenancy.principal import Role

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class MemberRow(msgspec.Struct, frozen=True):
    """A user with a role in a project."""

    id: str
    """The id of the user."""
    email: str
    name: str
    role: Role
    added_at: datetime.datetime


_PUT = """
    INSERT INTO project_members (organization_id, project_id, user_id, role) VALUES ($1, $2, $3, $4)
    ON CONFLICT (project_id, user_id) DO UPDATE SET role = excluded.role
"""


async def put_member(conn: Connection, organization_id: str, project_id: str, user_id: str, role: Role) -> None:
    """Give a user of the organization a role in a project, in place of an earlier role there.

    The permissions of the user's keys change with the role.
    """
    await conn.execute(_PUT, organization_id, project_id, user_id, role)
    await announce_keys_of(conn, project_id, user_id)


_GET = """
    SELECT u.id, u.email, u.name, m.role, m.added_at
    FROM project_members m JOIN users u ON u.id = m.user_id
    WHERE m.project_id = $1 AND m.user_id = $2
"""


async def get_member(conn: Connection, project_id: str, user_id: str) -> MemberRow | None:
    """Return a member of a project; None where the user is none."""
    row = await conn.fetchrow(_GET, project_id, user_id)
    return MemberRow(**row) if row else None


_LIST = """
    SELECT u.id, u.email, u.name, m.role, m.added_at
    FROM project_members m JOIN users u ON u.id = m.user_id
    WHERE m.project_id = $1
      AND ($2::text IS NULL OR (m.added_at, m.user_id) >
           (SELECT added_at, user_id FROM project_members WHERE project_id = $1 AND user_id = $2))
    ORDER BY m.added_at, m.user_id LIMIT $3
"""


async def list_members(
    conn: Connection, project_id: str, *, after: str | None = None, limit: int = 100
) -> list[MemberRow]:
    """Return members in the order in which they were added, those that follow the user with id `after`."""
    return [MemberRow(**row) for row in await conn.fetch(_LIST, project_id, after, limit)]


_REMOVE = "DELETE FROM project_members WHERE project_id = $1 AND user_id = $2"


async def remove_member(conn: Connection, project_id: str, user_id: str) -> list[str]:
    """End the membership and revoke the keys that the user owns in the project, in the caller's transaction.

    Returns the ids of these keys.
    """
    await conn.execute(_REMOVE, project_id, user_id)
    return await revoke_keys(conn, project_id=project_id, owner_user_id=user_id)
