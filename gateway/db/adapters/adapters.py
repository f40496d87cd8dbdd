"""Adapters of a project: their names, and which version is current.

Versions have a module of their own, and requests find theirs through `routes`.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.db.ids import new_id

if TYPE_CHECKING:
    import asyncpg

    from gateway.db.pool import Connection


class AdapterRow(msgspec.Struct, frozen=True):
    """An adapter of a project, with its current version.

    version, digest, rank and size_bytes are None while no version was ever current.
    """

    id: str
    project_id: str
    name: str
    version: int | None
    digest: str | None
    rank: int | None
    size_bytes: int | None
    previous_version: int | None
    """The version to which a rollback goes; None where there is none."""
    pinned: bool
    """True if the current version stays loaded on engines."""
    defaults: dict[str, Any]
    """Values for requests that name none, by field."""
    created_at: datetime.datetime
    base_digest: str | None
    """The digest of the adapter's base model; None only until a base adopts the adapter (`bases`)."""


class OtherBase(Exception):
    """The error for an adapter's name that the project uses for another base model."""


_FIND = """
    SELECT a.id, a.project_id, a.name, v.version, v.digest, v.rank, v.size_bytes, a.previous_version, a.pinned,
           a.defaults, a.created_at, a.base_digest
    FROM adapters a LEFT JOIN adapter_versions v ON v.adapter_id = a.id AND v.version = a.current_version
    WHERE a.project_id = $1 AND a.name = $2 AND a.removed_at IS NULL
"""


async def find_adapter(conn: Connection, project_id: str, name: str) -> AdapterRow | None:
    """Return a project's adapter by its name; None where there is none."""
    row = await conn.fetchrow(_FIND, project_id, name)
    return _adapter(row) if row else None


_LOCK = "SELECT id FROM adapters WHERE project_id = $1 AND name = $2 AND removed_at IS NULL FOR UPDATE"


async def lock_adapter(conn: Connection, project_id: str, name: str) -> AdapterRow | None:
    """Return an adapter as `find_adapter` does. Nobody else changes it or its versions until the transaction ends."""
    if await conn.fetchval(_LOCK, project_id, name) is None:
        return None
    return await find_adapter(conn, project_id, name)


_LIST = """
    SELECT a.id, a.project_id, a.name, v.version, v.digest, v.rank, v.size_bytes, a.previous_version, a.pinned,
           a.defaults, a.created_at, a.base_digest
    FROM adapters a LEFT JOIN adapter_versions v ON v.adapter_id = a.id AND v.version = a.current_version
    WHERE a.project_id = $1 AND a.removed_at IS NULL
      AND ($2::text IS NULL OR (a.created_at, a.id) >
           (SELECT created_at, id FROM adapters WHERE project_id = $1 AND id = $2))
    ORDER BY a.created_at, a.id LIMIT $3
"""


async def list_adapters(
    conn: Connection, project_id: str, *, after: str | None = None, limit: int | None = None
) -> list[AdapterRow]:
    """Return adapters, oldest first, those that follow the adapter with id `after`; all of them without a limit."""
    return [_adapter(row) for row in await conn.fetch(_LIST, project_id, after, limit)]


class TenantsAdapter(msgspec.Struct, frozen=True):
    """An adapter with the name of its project."""

    adapter: AdapterRow
    project_name: str


_LIST_ALL = """
    SELECT a.id, a.project_id, a.name, v.version, v.digest, v.rank, v.size_bytes, a.previous_version, a.pinned,
           a.defaults, a.created_at, a.base_digest, p.name AS project_name
    FROM adapters a JOIN projects p ON p.id = a.project_id
        LEFT JOIN adapter_versions v ON v.adapter_id = a.id AND v.version = a.current_version
    WHERE p.organization_id = $1 AND ($2::text[] IS NULL OR p.id = ANY ($2)) AND p.archived_at IS NULL
      AND a.removed_at IS NULL
      AND ($3::text IS NULL OR (a.created_at, a.id) > (SELECT created_at, id FROM adapters WHERE id = $3))
    ORDER BY a.created_at, a.id LIMIT $4
"""


async def list_all_adapters(
    conn: Connection, organization_id: str, project_ids: list[str] | None, *, after: str | None, limit: int
) -> list[TenantsAdapter]:
    """List the adapters of several projects that are not archived; None stands for all projects of the organization.

    after: the id of the last adapter of the page before; None: the page is the first. limit: the most adapters.
    """
    found = []
    for row in await conn.fetch(_LIST_ALL, organization_id, project_ids, after, limit):
        fields = dict(row)
        project_name = fields.pop("project_name")
        found.append(TenantsAdapter(_adapter(fields), project_name))
    return found


_EXISTED_IN = """
    SELECT EXISTS (SELECT FROM adapters a JOIN projects p ON p.id = a.project_id
                   WHERE p.organization_id = $1 AND ($2::text[] IS NULL OR p.id = ANY ($2)) AND a.id = $3)
"""


async def adapter_existed_in(
    conn: Connection, organization_id: str, project_ids: list[str] | None, adapter_id: str
) -> bool:
    """Tell whether one of these projects has, or ever had, an adapter of this id."""
    return bool(await conn.fetchval(_EXISTED_IN, organization_id, project_ids, adapter_id))


# A removed adapter still has its place in the order, so a page that began before it was removed goes on.
_EXISTED = "SELECT EXISTS (SELECT FROM adapters WHERE project_id = $1 AND id = $2)"


async def adapter_existed(conn: Connection, project_id: str, adapter_id: str) -> bool:
    """Tell whether the project has, or ever had, an adapter of this id."""
    return bool(await conn.fetchval(_EXISTED, project_id, adapter_id))


# DO UPDATE rather than DO NOTHING: it locks the row it meets, and inserts if that row is being removed.
_ENSURE = """
    INSERT INTO adapters AS a (id, project_id, name, base_digest) VALUES ($1, $2, $3, $4)
    ON CONFLICT (project_id, name) WHERE removed_at IS NULL DO UPDATE SET name = excluded.name
"""


async def ensure_adapter(conn: Connection, project_id: str, name: str, base_digest: str) -> tuple[AdapterRow, bool]:
    """Return the adapter of this name, locked until the transaction ends, and whether it is new.

    base_digest: the base that the adapter is for; it is registered (`bases`).
    Raises OtherBase: when the adapter of this name is for another base.
    """
    adapter, made_id = await lock_adapter(conn, project_id, name), new_id("adpt")
    if adapter is None:  # a known one is left as it is, without a change that would be announced
        await conn.execute(_ENSURE, made_id, project_id, name, base_digest)
        adapter = await find_adapter(conn, project_id, name)
    assert adapter is not None
    if adapter.base_digest not in (base_digest, None):
        raise OtherBase
    return adapter, adapter.id == made_id


# The schema remembers the version that was current before.
_RECORD_PROMOTION = "UPDATE adapters SET last_promotion = last_promotion + 1 WHERE id = $1 RETURNING last_promotion"
_PROMOTE = """
    UPDATE adapters SET current_version = $2, current_promotion = $3 WHERE id = $1 AND current_promotion < $3
"""


async def next_promotion(conn: Connection, adapter_id: str) -> int:
    """Return the number of a new order that a version become current. The caller has locked the adapter."""
    return int(await conn.fetchval(_RECORD_PROMOTION, adapter_id))


async def promote(conn: Connection, adapter_id: str, version: int, promotion: int) -> bool:
    """Make a ready version the current one, unless a later order has made another one current.

    promotion: the number of the order to promote; a later order has a higher one.
    """
    return await conn.execute(_PROMOTE, adapter_id, version, promotion) != "UPDATE 0"


_CONFIRM = """
    UPDATE adapters SET last_promotion = last_promotion + 1, current_promotion = last_promotion + 1
    WHERE id = $1 AND current_promotion < last_promotion
"""


async def confirm_current(conn: Connection, adapter_id: str) -> None:
    """Keep the current version, and cancel all earlier orders for versions that are not ready."""
    await conn.execute(_CONFIRM, adapter_id)


_ALIASES = "SELECT name FROM model_aliases WHERE adapter_id = $1 AND version = $2 ORDER BY name"


async def aliases_of(conn: Connection, adapter_id: str, version: int) -> list[str]:
    """Return the names of the aliases that point at this version of the adapter."""
    return [row["name"] for row in await conn.fetch(_ALIASES, adapter_id, version)]


_REMOVE = """
    UPDATE adapters SET removed_at = now() WHERE project_id = $1 AND name = $2 AND removed_at IS NULL RETURNING id
"""
_UNSHARE = "DELETE FROM adapter_shares WHERE adapter_id = $1"
_UNALIAS = "DELETE FROM model_aliases WHERE adapter_id = $1"


async def remove_adapter(conn: Connection, project_id: str, name: str) -> bool:
    """Take an adapter with all its versions out of use, and end its shares and aliases. Return False if there is none.

    The content of the adapter leaves the store later.
    """
    async with conn.transaction():
        adapter_id = await conn.fetchval(_REMOVE, project_id, name)
        if adapter_id is None:
            return False
        await conn.execute(_UNSHARE, adapter_id)
        await conn.execute(_UNALIAS, adapter_id)
        return True


def _adapter(row: asyncpg.Record | dict[str, Any]) -> AdapterRow:
    fields: dict[str, Any] = dict(row)
    defaults = msgspec.json.decode(fields.pop("defaults"))
    return AdapterRow(defaults=defaults, **fields)
