"""The people of an organization, with their role in it.

Their logins are in `gateway.db.organization.logins`.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import msgspec

from gateway.db.ids import new_id
from gateway.db.organization.keys import revoke_keys
from gateway.domain.tenancy.principal import Role

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class UserRow(msgspec.Struct, frozen=True):
    """A person of an organization."""

    id: str
    organization_id: str
    email: str
    """The address in lower case."""
    name: str
    role: Role | None
    """The role in the organization; None for members of single projects."""
    created_at: datetime.datetime
    has_password: bool
    has_totp: bool
    num_passkeys: int


_INSERT = """
    INSERT INTO users (id, organization_id, email, name, role, password_hash) VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (email) WHERE removed_at IS NULL DO NOTHING
    RETURNING id, organization_id, email, name, role, created_at,
              password_hash IS NOT NULL AS has_password, totp_confirmed_at IS NOT NULL AS has_totp, 0 AS num_passkeys
"""


async def create_user(
    conn: Connection, organization_id: str, *, email: str, name: str, role: Role | None, password_hash: str | None
) -> UserRow | None:
    """Create a user. Return None if somebody has this address, in whichever organization.

    role: the role in the organization; None: none. password_hash: None: no password yet.
    """
    row = await conn.fetchrow(_INSERT, new_id("user"), organization_id, email, name, role, password_hash)
    return UserRow(**row) if row else None


_HAD = "SELECT EXISTS (SELECT FROM users WHERE organization_id = $1)"


async def had_users(conn: Connection, organization_id: str) -> bool:
    """Tell whether the organization has, or ever had, people; removed ones count."""
    return bool(await conn.fetchval(_HAD, organization_id))


_GET = """
    SELECT id, organization_id, email, name, role, created_at,
           password_hash IS NOT NULL AS has_password, totp_confirmed_at IS NOT NULL AS has_totp,
           (SELECT count(*) FROM passkeys p WHERE p.user_id = users.id) AS num_passkeys
    FROM users WHERE organization_id = $1 AND id = $2 AND removed_at IS NULL
"""


async def get_user(conn: Connection, organization_id: str, user_id: str) -> UserRow | None:
    """Return a user of an organization; None where there is none."""
    row = await conn.fetchrow(_GET, organization_id, user_id)
    return UserRow(**row) if row else None


_LOCK = """
    SELECT id, organization_id, email, name, role, created_at,
           password_hash IS NOT NULL AS has_password, totp_confirmed_at IS NOT NULL AS has_totp,
           (SELECT count(*) FROM passkeys p WHERE p.user_id = users.id) AS num_passkeys
    FROM users WHERE organization_id = $1 AND id = $2 AND removed_at IS NULL FOR NO KEY UPDATE
"""


async def lock_user(conn: Connection, organization_id: str, user_id: str) -> UserRow | None:
    """Return the user, locked against changes by others until the transaction ends."""
    row = await conn.fetchrow(_LOCK, organization_id, user_id)
    return UserRow(**row) if row else None


_LIST = """
    SELECT id, organization_id, email, name, role, created_at,
           password_hash IS NOT NULL AS has_password, totp_confirmed_at IS NOT NULL AS has_totp,
           (SELECT count(*) FROM passkeys p WHERE p.user_id = users.id) AS num_passkeys
    FROM users
    WHERE organization_id = $1 AND removed_at IS NULL
      AND ($2::text IS NULL OR (created_at, id) >
           (SELECT created_at, id FROM users WHERE organization_id = $1 AND id = $2))
      AND ($4::text IS NULL OR email = $4)
    ORDER BY created_at, id LIMIT $3
"""


async def list_users(
    conn: Connection, organization_id: str, *, after: str | None = None, limit: int = 100, email: str | None = None
) -> list[UserRow]:
    """Return users, oldest first, those that follow the user with id `after`. email: only the one with this address."""
    return [UserRow(**row) for row in await conn.fetch(_LIST, organization_id, after, limit, email)]


_LOCK_OWNERS = """
    SELECT id FROM users WHERE organization_id = $1 AND role = 'owner' AND removed_at IS NULL
    ORDER BY id FOR NO KEY UPDATE
"""


async def lock_owners(conn: Connection, organization_id: str) -> list[str]:
    """Return the ids of the organization's owners, locked against changes by others until the transaction ends."""
    return [row["id"] for row in await conn.fetch(_LOCK_OWNERS, organization_id)]


_MODIFY = "UPDATE users SET name = $3, role = $4 WHERE organization_id = $1 AND id = $2"


async def modify_user(conn: Connection, organization_id: str, user_id: str, name: str, role: Role | None) -> None:
    """Set the name and the role of a user."""
    await conn.execute(_MODIFY, organization_id, user_id, name, role)


_REMOVE = """
    UPDATE users SET removed_at = now(), role = NULL, password_hash = NULL, totp_secret = NULL, totp_confirmed_at = NULL
    WHERE organization_id = $1 AND id = $2
"""
_END_LOGINS = "UPDATE logins SET revoked_at = now() WHERE user_id = $1 AND revoked_at IS NULL"
_END_MEMBERSHIPS = "DELETE FROM project_members WHERE user_id = $1"
_END_PASSKEYS = "DELETE FROM passkeys WHERE user_id = $1"


async def remove_user(conn: Connection, organization_id: str, user_id: str) -> list[str]:
    """Remove a user whom the caller's transaction has locked: logins, passkeys, memberships and keys end too.

    Returns the ids of the keys that were revoked.
    """
    for statement in (_END_LOGINS, _END_PASSKEYS, _END_MEMBERSHIPS):
        await conn.execute(statement, user_id)
    revoked = await revoke_keys(conn, owner_user_id=user_id)
    await conn.execute(_REMOVE, organization_id, user_id)
    return revoked
