"""The store's contents that the tables refer to, and the lock that keeps both in agreement.

A version refers to its content until it is rejected or deleted, or its adapter is removed. Content is shared between
tenants who bring the same bytes, so unused content is looked for over all of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class Reference(msgspec.Struct, frozen=True):
    """A version that needs its content."""

    project_id: str
    name: str
    version: int
    digest: str


_REFERRED_TO = """
    SELECT DISTINCT a.project_id, v.digest FROM adapter_versions v JOIN adapters a ON a.id = v.adapter_id
    WHERE v.digest = ANY ($1::text[]) AND a.removed_at IS NULL AND v.state NOT IN ('rejected', 'deleted')
"""


async def content_owners(conn: Connection, digests: Collection[str]) -> dict[str, set[str]]:
    """Return the ids of the projects that refer to each content, by digest.

    Contents that no project refers to are left out.
    """
    found: dict[str, set[str]] = {}
    for row in await conn.fetch(_REFERRED_TO, list(digests)):
        found.setdefault(row["digest"], set()).add(row["project_id"])
    return found


_REFERENCES = """
    SELECT a.project_id, a.name, v.version, v.digest
    FROM projects p JOIN adapters a ON a.project_id = p.id JOIN adapter_versions v ON v.adapter_id = a.id
    WHERE p.organization_id = $1 AND a.removed_at IS NULL AND v.state NOT IN ('rejected', 'deleted')
    ORDER BY a.project_id, a.name, v.version
"""


async def content_references(conn: Connection, organization_id: str) -> list[Reference]:
    """Return all versions of the organization's adapters that need their content in the store."""
    return [Reference(**row) for row in await conn.fetch(_REFERENCES, organization_id)]


_STORE_LOCK_KEY = 0x61646170746572  # "adapter"


@asynccontextmanager
async def store_shared(conn: Connection) -> AsyncIterator[None]:
    """Run a transaction during which no content leaves the store, so that what is put there can be referred to."""
    async with conn.transaction():
        await conn.execute("SELECT pg_advisory_xact_lock_shared($1)", _STORE_LOCK_KEY)
        yield


@asynccontextmanager
async def store_exclusive(conn: Connection) -> AsyncIterator[None]:
    """Run a transaction during which nobody else puts content into the store or takes it out."""
    async with conn.transaction():
        await conn.execute("SELECT pg_advisory_xact_lock($1)", _STORE_LOCK_KEY)
        yield
