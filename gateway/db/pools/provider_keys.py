"""Keys that projects bring for the servers behind a pool, encrypted by the gateways: one of each project and pool."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import msgspec

from gateway.db.ids import new_id

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class ProviderKeyRow(msgspec.Struct, frozen=True):
    """A project's key for the servers of a pool, without the key itself."""

    id: str
    pool_id: str
    model: str
    """The name of the pool."""
    hint: str
    """The last characters of the key."""
    created_at: datetime.datetime
    changed_at: datetime.datetime
    """The time at which the present key took the place of the one before."""


class SealedProviderKey(msgspec.Struct, frozen=True):
    """A project's encrypted key for the servers of a pool."""

    id: str
    content_key: str
    """The id of the content key that encrypted the key."""
    sealed: bytes
    hint: str


_FIND = """
    SELECT k.id, k.pool_id, p.name AS model, k.hint, k.created_at, k.changed_at
    FROM provider_keys k JOIN pools p ON p.id = k.pool_id
    WHERE k.project_id = $1 AND ($2::text IS NULL OR k.id = $2) AND ($3::text IS NULL OR k.pool_id = $3)
    ORDER BY k.created_at, k.id
"""


async def list_provider_keys(conn: Connection, project_id: str) -> list[ProviderKeyRow]:
    """Return all keys that a project has brought, the oldest first."""
    return [ProviderKeyRow(**row) for row in await conn.fetch(_FIND, project_id, None, None)]


async def find_provider_key(conn: Connection, project_id: str, key_id: str) -> ProviderKeyRow | None:
    """Return a project's key by its id."""
    row = await conn.fetchrow(_FIND, project_id, key_id, None)
    return ProviderKeyRow(**row) if row else None


async def provider_key_of_pool(conn: Connection, project_id: str, pool_id: str) -> ProviderKeyRow | None:
    """Return a project's key for the servers of a pool."""
    row = await conn.fetchrow(_FIND, project_id, None, pool_id)
    return ProviderKeyRow(**row) if row else None


_HOLD = "SELECT EXISTS (SELECT FROM pools WHERE id = $1 AND removed_at IS NULL FOR SHARE)"


async def hold_pool(conn: Connection, pool_id: str) -> bool:
    """Keep a pool from being removed until the transaction ends; return False where it is gone already."""
    return bool(await conn.fetchval(_HOLD, pool_id))


_SET = """
    INSERT INTO provider_keys (id, project_id, pool_id, content_key, sealed, hint) VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (project_id, pool_id) DO UPDATE SET
        content_key = excluded.content_key, sealed = excluded.sealed, hint = excluded.hint, changed_at = now()
"""


async def set_provider_key(
    conn: Connection, project_id: str, pool_id: str, content_key: str, sealed: bytes, *, hint: str
) -> None:
    """Store a project's encrypted key for the servers of a pool in place of the one before."""
    await conn.execute(_SET, new_id("pkey"), project_id, pool_id, content_key, sealed, hint)


_REMOVE = "DELETE FROM provider_keys WHERE project_id = $1 AND id = $2"


async def remove_provider_key(conn: Connection, project_id: str, key_id: str) -> None:
    """Delete a project's key."""
    await conn.execute(_REMOVE, project_id, key_id)


_REMOVE_OF_POOL = "DELETE FROM provider_keys WHERE pool_id = $1"


async def remove_provider_keys_of_pool(conn: Connection, pool_id: str) -> None:
    """Delete the keys of projects for the servers of a pool that is removed."""
    await conn.execute(_REMOVE_OF_POOL, pool_id)


_SEALED = "SELECT id, content_key, sealed, hint FROM provider_keys WHERE project_id = $1 AND pool_id = $2"


async def sealed_provider_key(conn: Connection, project_id: str, pool_id: str) -> SealedProviderKey | None:
    """Return a project's encrypted key for the servers of a pool; None where it has brought none."""
    row = await conn.fetchrow(_SEALED, project_id, pool_id)
    return None if row is None else SealedProviderKey(**row)


_RESEAL = "UPDATE provider_keys SET content_key = $3, sealed = $4 WHERE id = $1 AND content_key = $2"


async def reseal_provider_key(conn: Connection, key_id: str, before: str, content_key: str, sealed: bytes) -> None:
    """Store a project's key encrypted with another content key, unless the stored one changed meanwhile.

    before: the id of the content key that encrypted the stored key so far.
    """
    await conn.execute(_RESEAL, key_id, before, content_key, sealed)
