"""An organization's pools as its operators see and check them, and the bases that one project may use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.db.pools.pools import Grant, PoolRow, lock_pool_by_id
from gateway.db.pools.served import ServedPool, read_served
from gateway.domain.pools.capacity import host_of_tcp
from gateway.domain.pools.foreign_settings import OwnKeys, own_keys_of
from gateway.domain.pools.states import Access

if TYPE_CHECKING:
    from gateway.db.pool import Connection


async def list_managed(conn: Connection, organization_id: str, pool_id: str | None = None) -> list[ServedPool]:
    """Return the organization's pools with their grants, revisions and replicas, oldest first.

    For a transaction that has locked the pool, or that sees one instant (`list_at_once`).
    pool_id: the only pool to return.
    """
    ids = None if pool_id is None else [pool_id]
    return [each for each in await read_served(conn, ids, organization_id=organization_id) if not each.is_removed]


_LOCK_REVISIONS = "SELECT FROM pool_revisions WHERE pool_id = $1 ORDER BY revision FOR NO KEY UPDATE"
_LOCK_REPLICAS = "SELECT FROM replicas WHERE pool_id = $1 AND state <> 'stopped' ORDER BY id FOR NO KEY UPDATE"


async def lock_whole_pool(conn: Connection, organization_id: str, pool_id: str) -> PoolRow | None:
    """Lock the organization's pool with this id, with its revisions and replicas, and return it.

    Nobody else changes them until the transaction ends. All rows are locked before the first change, in the order of
    `planning`: a change locks the counter of changes, and another transaction that holds one of the rows may wait for
    the counter.
    """
    row = await lock_pool_by_id(conn, organization_id, pool_id)
    if row is not None:
        await conn.execute(_LOCK_REVISIONS, pool_id)
        await conn.execute(_LOCK_REPLICAS, pool_id)
    return row


async def list_at_once(conn: Connection, organization_id: str, pool_id: str | None = None) -> list[ServedPool]:
    """Return the result of `list_managed`, as of one instant.

    conn: without a transaction. pool_id: None: all pools of the organization.
    """
    async with conn.transaction(isolation="repeatable_read", readonly=True):
        return await list_managed(conn, organization_id, pool_id)


class TakenMemory(msgspec.Struct, frozen=True):
    """The memory that the replicas on one accelerator of a host, or on its processors, take by the estimates."""

    host_id: str
    gpu: int | None
    """The index of the accelerator; None: the host's processors, and their memory."""
    num_replicas: int
    num_bytes: int


_TAKEN = """
    SELECT r.host_id, r.gpu, count(*) AS num_replicas, coalesce(sum(v.num_bytes), 0)::bigint AS num_bytes
    FROM replicas r JOIN pool_revisions v USING (pool_id, revision)
    WHERE r.host_id IS NOT NULL AND r.state <> 'stopped' GROUP BY r.host_id, r.gpu ORDER BY r.host_id, r.gpu
"""


async def list_taken(conn: Connection) -> list[TakenMemory]:
    """Return the memory that the replicas of all organizations take on each host."""
    return [TakenMemory(**row) for row in await conn.fetch(_TAKEN)]


_ADDRESSES = """
    SELECT host_id, address FROM replicas WHERE host_id IS NOT NULL AND state <> 'stopped' AND address LIKE 'tcp://%'
"""


async def count_at_addresses(conn: Connection) -> Counter[tuple[str, str]]:
    """Return the number of replicas of all organizations by host and by the address at which they listen on TCP."""
    rows = await conn.fetch(_ADDRESSES)
    return Counter((row["host_id"], host_of_tcp(row["address"])) for row in rows)


_UNKNOWN_GRANTS = """
    SELECT g.place::integer - 1 AS place FROM unnest($1::text[], $2::text[])
        WITH ORDINALITY AS g (organization_id, project_id, place)
    WHERE NOT EXISTS (SELECT FROM organizations o WHERE o.id = g.organization_id)
       OR g.project_id IS NOT NULL AND NOT EXISTS
          (SELECT FROM projects p WHERE (p.organization_id, p.id) = (g.organization_id, g.project_id)
                                        AND p.archived_at IS NULL)
    ORDER BY g.place
"""


async def unknown_grants(conn: Connection, grants: Sequence[Grant]) -> list[int]:
    """Return the indexes of grants whose organization does not exist, or has no such active project."""
    organizations, projects = [each.organization_id for each in grants], [each.project_id for each in grants]
    return [row["place"] for row in await conn.fetch(_UNKNOWN_GRANTS, organizations, projects)]


_HAS_ALIAS = """
    SELECT EXISTS (
        SELECT FROM model_aliases a JOIN projects p ON p.id = a.project_id
        WHERE a.name = $1 AND p.archived_at IS NULL AND ($2 OR EXISTS
            (SELECT FROM unnest($3::text[], $4::text[]) AS g (organization_id, project_id)
             WHERE g.organization_id = p.organization_id AND coalesce(g.project_id, p.id) = p.id))
        UNION ALL SELECT FROM routes r WHERE r.name = $1 AND ($2 OR r.organization_id = ANY ($3::text[])))
"""


async def has_alias(conn: Connection, name: str, access: Access, grants: Sequence[Grant]) -> bool:
    """Tell whether a pool's name is taken in a project that may use the pool with this access.

    The name is taken by an alias of the project, or by a route of its organization.
    """
    organizations, projects = [each.organization_id for each in grants], [each.project_id for each in grants]
    return bool(await conn.fetchval(_HAS_ALIAS, name, access == "all", organizations, projects))


_NUM_ADAPTERS = """
    SELECT count(*) FROM adapters a JOIN projects p ON p.id = a.project_id
    WHERE a.base_digest = $1 AND a.removed_at IS NULL AND p.archived_at IS NULL
"""


async def count_adapters(conn: Connection, base_digest: str) -> int:
    """Return how many adapters of the installation belong to a base."""
    return int(await conn.fetchval(_NUM_ADAPTERS, base_digest))


_HAS_OTHER = """
    SELECT EXISTS (SELECT FROM pools p JOIN pool_revisions v ON (v.pool_id, v.revision) = (p.id, p.revision)
                   WHERE p.id <> $1 AND p.removed_at IS NULL AND v.base_digest = $2)
"""


async def is_served_elsewhere(conn: Connection, pool_id: str, base_digest: str) -> bool:
    """Tell whether another pool of the installation serves this base."""
    return bool(await conn.fetchval(_HAS_OTHER, pool_id, base_digest))


class UsableBase(msgspec.Struct, frozen=True):
    """A base model that a project may use."""

    id: str
    """The id of the base's pool."""
    name: str
    settings: dict[str, str]
    """The engine settings of the revision that serves."""
    own_keys: OwnKeys
    """The use of keys of the project's own for the servers: `none`, `allowed` or `required`."""
    num_ready: int
    """Replicas of agents that take requests."""
    unmanaged: list[str]
    """Ids of the replicas that no agent runs, which may take requests."""


_USABLE = """
    SELECT p.id, p.name, v.driver, v.settings::text AS settings,
           (SELECT count(*) FROM replicas r
            WHERE r.pool_id = p.id AND r.state = 'ready' AND r.host_id IS NOT NULL) AS num_ready,
           ARRAY (SELECT r.id FROM replicas r
                  WHERE r.pool_id = p.id AND r.state = 'ready' AND r.host_id IS NULL) AS unmanaged
    FROM pools p JOIN pool_revisions v ON (v.pool_id, v.revision) = (p.id, p.revision)
    WHERE p.removed_at IS NULL AND (p.access = 'all' OR EXISTS
        (SELECT FROM pool_grants g WHERE g.pool_id = p.id AND g.organization_id = $1
                                         AND coalesce(g.project_id, $2) = $2))
    ORDER BY p.created_at, p.id
"""
_SETTINGS = msgspec.json.Decoder(dict[str, str])


async def list_usable(conn: Connection, organization_id: str, project_id: str) -> list[UsableBase]:
    """Return the bases that the project may use and that have served, the oldest pool first."""
    return [_usable(row) for row in await conn.fetch(_USABLE, organization_id, project_id)]


def _usable(row: Any) -> UsableBase:
    settings = _SETTINGS.decode(row["settings"])
    own_keys = own_keys_of(row["driver"], settings)
    return UsableBase(row["id"], row["name"], settings, own_keys, row["num_ready"], row["unmanaged"])


_IS_USABLE = """
    SELECT EXISTS (SELECT FROM pools p WHERE p.name = $1 AND p.removed_at IS NULL AND (p.access = 'all' OR EXISTS
        (SELECT FROM pool_grants g WHERE g.pool_id = p.id AND g.organization_id = $2
                                         AND coalesce(g.project_id, $3) = $3)))
"""


_IS_USABLE_BY_ANY = """
    SELECT EXISTS (SELECT FROM pools p WHERE p.name = $1 AND p.removed_at IS NULL AND (p.access = 'all' OR EXISTS
        (SELECT FROM pool_grants g WHERE g.pool_id = p.id AND g.organization_id = $2)))
"""


async def is_usable_by_any(conn: Connection, name: str, organization_id: str) -> bool:
    """Tell whether there is a pool of this name that some project of the organization may use."""
    return bool(await conn.fetchval(_IS_USABLE_BY_ANY, name, organization_id))


async def is_usable(conn: Connection, name: str, organization_id: str, project_id: str) -> bool:
    """Tell whether there is a pool of this name that the project may use, whether it serves already or not."""
    return bool(await conn.fetchval(_IS_USABLE, name, organization_id, project_id))
