"""Adapters of a project and their versions: names and digests. The files lie in the adapter store, by digest."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from gateway.db.ids import new_id

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class AdapterRow(msgspec.Struct, frozen=True):
    """An adapter at its current version. created_at is that of the adapter, not of the version."""

    id: str
    project_id: str
    name: str
    version: int
    digest: str
    rank: int
    size_bytes: int
    created_at: datetime.datetime


_FIND = """
    SELECT a.id, a.project_id, a.name, v.version, v.digest, v.rank, v.size_bytes, a.created_at
    FROM adapters a JOIN adapter_versions v ON v.adapter_id = a.id AND v.version = a.current_version
    WHERE a.project_id = $1 AND a.name = $2 AND a.removed_at IS NULL
"""


async def find_adapter(conn: Connection, project_id: str, name: str) -> AdapterRow | None:
    row = await conn.fetchrow(_FIND, project_id, name)
    return AdapterRow(**row) if row else None


_LIST = """
    SELECT a.id, a.project_id, a.name, v.version, v.digest, v.rank, v.size_bytes, a.created_at
    FROM adapters a JOIN adapter_versions v ON v.adapter_id = a.id AND v.version = a.current_version
    WHERE a.project_id = $1 AND a.removed_at IS NULL
      AND ($2::text IS NULL OR (a.created_at, a.id) >
           (SELECT created_at, id FROM adapters WHERE project_id = $1 AND id = $2))
    ORDER BY a.created_at, a.id LIMIT $3
"""


async def list_adapters(
    conn: Connection, project_id: str, *, after: str | None = None, limit: int | None = None
) -> list[AdapterRow]:
    """Oldest first, those that follow the adapter with id `after`; all of them without a limit."""
    return [AdapterRow(**row) for row in await conn.fetch(_LIST, project_id, after, limit)]


# A removed adapter still has its place in the order, so a page that began before it was removed goes on.
_EXISTED = "SELECT EXISTS (SELECT FROM adapters WHERE project_id = $1 AND id = $2)"


async def adapter_existed(conn: Connection, project_id: str, adapter_id: str) -> bool:
    """Whether the project has, or had, an adapter of this id."""
    return bool(await conn.fetchval(_EXISTED, project_id, adapter_id))


# DO UPDATE rather than DO NOTHING: it locks the row it meets, and inserts if that row is being removed.
_UPSERT = """
    INSERT INTO adapters AS a (id, project_id, name, current_version) VALUES ($1, $2, $3, 1)
    ON CONFLICT (project_id, name) WHERE removed_at IS NULL DO UPDATE SET name = excluded.name
    RETURNING a.id, a.current_version
"""
_VERSIONS = "SELECT version, digest FROM adapter_versions WHERE adapter_id = $1"
_INSERT_VERSION = """
    INSERT INTO adapter_versions (adapter_id, version, digest, rank, size_bytes) VALUES ($1, $2, $3, $4, $5)
"""
_SET_CURRENT = "UPDATE adapters SET current_version = $2 WHERE id = $1"


async def put_adapter(
    conn: Connection, project_id: str, name: str, *, digest: str, rank: int, size_bytes: int
) -> tuple[AdapterRow, bool]:
    """Make this digest the current version of the adapter `name`, new or not.

    Returns the adapter and whether anything changed: nothing does if the digest is current already.
    """
    async with conn.transaction():
        locked = await conn.fetchrow(_UPSERT, new_id("adpt"), project_id, name)
        assert locked is not None
        versions = {row["version"]: row["digest"] for row in await conn.fetch(_VERSIONS, locked["id"])}
        changed = versions.get(locked["current_version"]) != digest
        if changed:
            version = max(versions, default=0) + 1
            await conn.execute(_INSERT_VERSION, locked["id"], version, digest, rank, size_bytes)
            await conn.execute(_SET_CURRENT, locked["id"], version)
        adapter = await find_adapter(conn, project_id, name)
        assert adapter is not None
        return adapter, changed


_REMOVE = """
    UPDATE adapters SET removed_at = now() WHERE project_id = $1 AND name = $2 AND removed_at IS NULL RETURNING id
"""


async def remove_adapter(conn: Connection, project_id: str, name: str) -> list[str] | None:
    """Take an adapter out of use; returns the digests of all its versions, None if there is none of this name."""
    async with conn.transaction():
        adapter_id = await conn.fetchval(_REMOVE, project_id, name)
        if adapter_id is None:
            return None
        return sorted({row["digest"] for row in await conn.fetch(_VERSIONS, adapter_id)})


_UNREFERENCED = """
    SELECT digest FROM unnest($1::text[]) AS candidate (digest)
    WHERE NOT EXISTS (
        SELECT FROM adapter_versions v JOIN adapters a ON a.id = v.adapter_id
        WHERE v.digest = candidate.digest AND a.removed_at IS NULL)
"""


async def unreferenced_digests(conn: Connection, digests: Sequence[str]) -> list[str]:
    """Those that no adapter uses. Content is shared between tenants who bring the same files, so it asks for all."""
    return [row["digest"] for row in await conn.fetch(_UNREFERENCED, digests)]


_STORE_LOCK_KEY = 0x61646170746572  # "adapter"


@asynccontextmanager
async def store_shared(conn: Connection) -> AsyncIterator[None]:
    """A transaction during which no content leaves the store: what is put there can be referred to."""
    async with conn.transaction():
        await conn.execute("SELECT pg_advisory_xact_lock_shared($1)", _STORE_LOCK_KEY)
        yield


@asynccontextmanager
async def store_exclusive(conn: Connection) -> AsyncIterator[None]:
    """A transaction during which nobody else puts content into the store or takes it out."""
    async with conn.transaction():
        await conn.execute("SELECT pg_advisory_xact_lock($1)", _STORE_LOCK_KEY)
        yield
