"""API keys: their SHA-256 and public part, whom they belong to, what they may do. Never the secret itself."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Literal

import msgspec

from gateway.db.ids import new_id
from gateway.principal import Scope

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class KeyRow(msgspec.Struct, frozen=True):
    """project_id is None for an operator's key. public: the part of the key that may be shown."""

    id: str
    kind: Literal["project", "admin"]
    organization_id: str
    project_id: str | None
    name: str
    public: str
    scopes: list[Scope]
    created_at: datetime.datetime
    expires_at: datetime.datetime | None
    revoked_at: datetime.datetime | None
    last_used_at: datetime.datetime | None


_INSERT = """
    INSERT INTO api_keys (id, kind, organization_id, project_id, name, public, sha256, scopes, expires_at)
    VALUES ($1, CASE WHEN $3::text IS NULL THEN 'admin' ELSE 'project' END, $2, $3, $4, $5, $6, $7, $8)
    ON CONFLICT (sha256) DO NOTHING
    RETURNING id, kind, organization_id, project_id, name, public, scopes,
              created_at, expires_at, revoked_at, last_used_at
"""


async def create_key(
    conn: Connection,
    *,
    organization_id: str,
    project_id: str | None,
    name: str,
    public: str,
    sha256: bytes,
    scopes: Collection[Scope],
    expires_at: datetime.datetime | None = None,
) -> KeyRow | None:
    """Store a key; project_id None makes it an operator's. None if this very key is stored already.

    Raises asyncpg.ForeignKeyViolationError if the project is not the organization's.
    """
    row = await conn.fetchrow(
        _INSERT, new_id("key"), organization_id, project_id, name, public, sha256, sorted(scopes), expires_at
    )
    return KeyRow(**row) if row else None


_FIND_USABLE = """
    SELECT id, kind, organization_id, project_id, name, public, scopes,
           created_at, expires_at, revoked_at, last_used_at
    FROM api_keys
    WHERE sha256 = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())
"""


async def find_usable_key(conn: Connection, sha256: bytes, *, timeout_s: float | None = None) -> KeyRow | None:
    """The key with this digest unless it is revoked or has expired. The digest is the credential: no tenant yet."""
    row = await conn.fetchrow(_FIND_USABLE, sha256, timeout=timeout_s)
    return KeyRow(**row) if row else None


_GET = """
    SELECT id, kind, organization_id, project_id, name, public, scopes,
           created_at, expires_at, revoked_at, last_used_at
    FROM api_keys WHERE project_id = $1 AND id = $2
"""


async def get_key(conn: Connection, project_id: str, key_id: str) -> KeyRow | None:
    row = await conn.fetchrow(_GET, project_id, key_id)
    return KeyRow(**row) if row else None


_FIND_BY_ID = """
    SELECT id, kind, organization_id, project_id, name, public, scopes,
           created_at, expires_at, revoked_at, last_used_at
    FROM api_keys WHERE organization_id = $1 AND id = $2 AND kind = 'project'
"""


async def find_project_key(conn: Connection, organization_id: str, key_id: str) -> KeyRow | None:
    """The key with this id of any project of the organization."""
    row = await conn.fetchrow(_FIND_BY_ID, organization_id, key_id)
    return KeyRow(**row) if row else None


_LIST = """
    SELECT id, kind, organization_id, project_id, name, public, scopes,
           created_at, expires_at, revoked_at, last_used_at
    FROM api_keys
    WHERE project_id = $1
      AND ($2::text IS NULL OR (created_at, id) >
           (SELECT created_at, id FROM api_keys WHERE project_id = $1 AND id = $2))
    ORDER BY created_at, id LIMIT $3
"""


async def list_keys(conn: Connection, project_id: str, *, after: str | None = None, limit: int = 100) -> list[KeyRow]:
    """Oldest first, revoked ones included; those that follow the key with id `after`."""
    return [KeyRow(**row) for row in await conn.fetch(_LIST, project_id, after, limit)]


_REVOKE = """
    UPDATE api_keys SET revoked_at = now()
    WHERE project_id = $1 AND id = $2 AND revoked_at IS NULL
"""


async def revoke_key(conn: Connection, project_id: str, key_id: str) -> KeyRow | None:
    """Revoke it if it is not revoked yet; returns the key as it is then, None if the project has no such key."""
    await conn.execute(_REVOKE, project_id, key_id)
    return await get_key(conn, project_id, key_id)


# Several gateways note the same key: the first one in a minute writes.
_TOUCH = """
    UPDATE api_keys SET last_used_at = used.at
    FROM unnest($1::text[], $2::timestamptz[]) AS used (id, at)
    WHERE api_keys.id = used.id
      AND (last_used_at IS NULL OR last_used_at <= used.at - interval '1 minute')
"""


async def touch_keys(conn: Connection, used_at: Mapping[str, datetime.datetime]) -> None:
    """Note when keys were last used, {key id: time}, to the minute."""
    await conn.execute(_TOUCH, list(used_at), list(used_at.values()))
