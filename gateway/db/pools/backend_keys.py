"""The keys that the servers behind pools ask for, encrypted by the gateways: one of each pool."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class BackendKey(msgspec.Struct, frozen=True):
    """The key of a pool's servers as operators see it."""

    hint: str
    """The last characters of the key."""
    created_at: datetime.datetime


_SET = """
    INSERT INTO backend_keys (pool_id, content_key, sealed, hint) VALUES ($1, $2, $3, $4)
    ON CONFLICT (pool_id) DO UPDATE SET
        content_key = excluded.content_key, sealed = excluded.sealed, hint = excluded.hint, created_at = now()
"""


async def set_backend_key(conn: Connection, pool_id: str, content_key: str, sealed: bytes, *, hint: str) -> None:
    """Store the encrypted key of a pool's servers in place of the one before. The caller has locked the pool."""
    await conn.execute(_SET, pool_id, content_key, sealed, hint)


_REMOVE = "DELETE FROM backend_keys WHERE pool_id = $1"


async def remove_backend_key(conn: Connection, pool_id: str) -> bool:
    """Delete the key of a pool's servers; return whether there was one."""
    return await conn.execute(_REMOVE, pool_id) == "DELETE 1"


_SHOW = "SELECT hint, created_at FROM backend_keys WHERE pool_id = $1"


async def find_backend_key(conn: Connection, pool_id: str) -> BackendKey | None:
    """Return the facts about the key of a pool's servers that operators see; None where they need none."""
    row = await conn.fetchrow(_SHOW, pool_id)
    return None if row is None else BackendKey(row["hint"], row["created_at"])


_SEALED = "SELECT content_key, sealed FROM backend_keys WHERE pool_id = $1"


async def sealed_backend_key(conn: Connection, pool_id: str) -> tuple[str, bytes] | None:
    """Return the id of the content key of the key of a pool's servers, and the encrypted key."""
    row = await conn.fetchrow(_SEALED, pool_id)
    return None if row is None else (row["content_key"], row["sealed"])


_RESEAL = "UPDATE backend_keys SET content_key = $3, sealed = $4 WHERE pool_id = $1 AND content_key = $2"


async def reseal_backend_key(conn: Connection, pool_id: str, before: str, content_key: str, sealed: bytes) -> None:
    """Store the key of a pool's servers encrypted with another content key, unless the stored one changed meanwhile.

    before: the id of the content key that encrypted the stored key so far.
    """
    await conn.execute(_RESEAL, pool_id, before, content_key, sealed)
