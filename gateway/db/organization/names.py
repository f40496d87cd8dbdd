"""Finds the names that belong to ids, for people who read lists. Only objects of one organization are named."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from gateway.db.pool import Connection

_PROJECTS = """
    SELECT id, coalesce(archived_name, name) AS name FROM projects WHERE organization_id = $1 AND id = ANY ($2)
"""


async def project_names(conn: Connection, organization_id: str, ids: Collection[str]) -> dict[str, str]:
    """Return the names of projects by id, without ids that the organization does not have."""
    return {row["id"]: row["name"] for row in await conn.fetch(_PROJECTS, organization_id, list(ids))}


_ADAPTERS = """
    SELECT a.id, a.name FROM adapters a JOIN projects p ON p.id = a.project_id
    WHERE p.organization_id = $1 AND a.id = ANY ($2)
"""


async def adapter_names(conn: Connection, organization_id: str, ids: Collection[str]) -> dict[str, str]:
    """Return the names of an organization's adapters by their ids."""
    return {row["id"]: row["name"] for row in await conn.fetch(_ADAPTERS, organization_id, list(ids))}


_KEYS = "SELECT id, name FROM api_keys WHERE organization_id = $1 AND id = ANY ($2)"


async def key_names(conn: Connection, organization_id: str, ids: Collection[str]) -> dict[str, str]:
    """Return the names of an organization's keys by their ids."""
    return {row["id"]: row["name"] for row in await conn.fetch(_KEYS, organization_id, list(ids))}


class NamedContent(msgspec.Struct, frozen=True):
    """One version of an adapter, by the digest of its content."""

    digest: str
    adapter_id: str
    name: str
    version: int
    project_id: str
    project_name: str


_CONTENTS = """
    SELECT DISTINCT ON (a.id, v.digest) v.digest, a.id AS adapter_id, a.name, v.version, p.id AS project_id,
           p.name AS project_name
    FROM adapter_versions v JOIN adapters a ON a.id = v.adapter_id JOIN projects p ON p.id = a.project_id
    WHERE v.digest = ANY ($2) AND p.organization_id = $1
    ORDER BY a.id, v.digest, v.version DESC
"""


async def named_contents(conn: Connection, organization_id: str, digests: Collection[str]) -> list[NamedContent]:
    """Return each adapter's latest version that has one of these digests."""
    return [NamedContent(**row) for row in await conn.fetch(_CONTENTS, organization_id, list(digests))]
