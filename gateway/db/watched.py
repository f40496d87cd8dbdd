"""The watched folder's memory: what of each adapter's files was taken in last, and which gateway watches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from gateway.db.pool import Connection

_LOCK_KEY = 0x6C6F7269776174  # "loriwat"
_TRY_LOCK = "SELECT pg_try_advisory_lock($1)"


async def try_become_watcher(conn: Connection) -> bool:
    """Whether this session is the one that watches, until it ends. Who is may ask again."""
    return bool(await conn.fetchval(_TRY_LOCK, _LOCK_KEY))


class Tenant(msgspec.Struct, frozen=True):
    project_id: str
    organization_id: str


_FIND = "SELECT id AS project_id, organization_id FROM projects WHERE name = $1 AND archived_at IS NULL LIMIT 2"


async def find_tenants(conn: Connection, name: str) -> list[Tenant]:
    """Whose folder has this name: of any organization, two of them at most."""
    return [Tenant(**row) for row in await conn.fetch(_FIND, name)]


_FINGERPRINT = "SELECT fingerprint FROM watched_adapters WHERE project_id = $1 AND name = $2"


async def taken_fingerprint(conn: Connection, project_id: str, name: str) -> str | None:
    """Of what was taken in last, None if nothing was."""
    fingerprint: str | None = await conn.fetchval(_FINGERPRINT, project_id, name)
    return fingerprint


_NOTE = """
    INSERT INTO watched_adapters (project_id, name, fingerprint) VALUES ($1, $2, $3)
    ON CONFLICT (project_id, name) DO UPDATE SET fingerprint = excluded.fingerprint, taken_at = now()
"""


async def note_taken(conn: Connection, project_id: str, name: str, fingerprint: str) -> None:
    await conn.execute(_NOTE, project_id, name, fingerprint)
