"""All pools of the installation with their revisions and replicas, as gateways and agents read them.

Also switches a pool to another revision.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from gateway.db.pools.pools import Grant, PoolRow, pool_of
from gateway.db.pools.replicas import ReplicaRow, list_all_replicas
from gateway.db.pools.revisions import RevisionRow, revision_of
from gateway.db.pools.scaling_rows import ScalingRow, list_scaling

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class ServedPool(msgspec.Struct, frozen=True):
    """A pool with its grants, revisions and replicas, as gateways and agents need them."""

    row: PoolRow
    grants: list[Grant]
    """The projects and organizations that may use a pool whose access is "listed"."""
    revisions: dict[int, RevisionRow]
    """The revision that serves, the one that is wanted, and those of running replicas, by number."""
    replicas: list[ReplicaRow]
    """Replicas that have not been stopped, oldest first."""
    is_removed: bool
    """True for a removed pool, which is listed while it has replicas."""
    scaling: ScalingRow | None = None
    """The bounds by which the number of replicas follows the load; None where an operator sets the number."""


# The ids of the pools to read and the organization that they are of; NULL is all.
_POOLS = """
    SELECT * FROM pools p
    WHERE (p.id = ANY ($1::text[]) OR $1 IS NULL) AND (p.organization_id = $2 OR $2 IS NULL)
      AND (removed_at IS NULL OR EXISTS (SELECT FROM replicas r WHERE r.pool_id = p.id AND r.state <> 'stopped'))
    ORDER BY created_at, id
"""
_REVISIONS = """
    SELECT v.* FROM pool_revisions v JOIN pools p ON p.id = v.pool_id
    WHERE p.id = ANY ($1::text[])
      AND (v.revision IN (p.revision, p.wanted_revision) AND p.removed_at IS NULL OR EXISTS
           (SELECT FROM replicas r WHERE (r.pool_id, r.revision) = (v.pool_id, v.revision) AND r.state <> 'stopped'))
"""
_GRANTS = "SELECT pool_id, organization_id, project_id FROM pool_grants WHERE pool_id = ANY ($1::text[]) ORDER BY 2, 3"


async def list_served(conn: Connection, pool_ids: Collection[str] | None = None) -> list[ServedPool]:
    """Return all pools of the installation as of one instant, oldest first; with pool_ids, those alone."""
    async with conn.transaction(isolation="repeatable_read", readonly=True):
        return await read_served(conn, pool_ids)


async def read_served(
    conn: Connection, pool_ids: Collection[str] | None = None, *, organization_id: str | None = None
) -> list[ServedPool]:
    """Return the result of `list_served`, in the caller's transaction.

    For a transaction that has locked the pools, or that sees one instant: a pool's revisions are read after its row.
    organization_id: the only organization whose pools are returned.
    """
    pools = await conn.fetch(_POOLS, None if pool_ids is None else list(pool_ids), organization_id)
    ids = [row["id"] for row in pools]
    revisions: dict[str, dict[int, RevisionRow]] = {}
    for each in map(revision_of, await conn.fetch(_REVISIONS, ids)):
        revisions.setdefault(each.pool_id, {})[each.revision] = each
    grants: dict[str, list[Grant]] = {}
    for row in await conn.fetch(_GRANTS, ids):
        grants.setdefault(row["pool_id"], []).append(Grant(row["organization_id"], row["project_id"]))
    replicas: dict[str, list[ReplicaRow]] = {}
    for replica in await list_all_replicas(conn, ids):
        replicas.setdefault(replica.pool_id, []).append(replica)
    scaling = await list_scaling(conn, ids)
    served = []
    for row in pools:
        id, is_removed = row["id"], row["removed_at"] is not None
        served.append(
            ServedPool(
                pool_of(row),
                grants.get(id, []),
                revisions.get(id, {}),
                replicas.get(id, []),
                is_removed,
                scaling.get(id),
            )
        )
    return served


_SERVING = "SELECT name FROM served_bases WHERE base_digest = $1 ORDER BY name"


async def pools_serving(conn: Connection, base_digest: str) -> list[str]:
    """Return the names of the pools that serve a base."""
    return [row["name"] for row in await conn.fetch(_SERVING, base_digest)]


_SWITCH = "UPDATE pools SET revision = $2 WHERE id = $1 AND wanted_revision = $2 AND revision IS DISTINCT FROM $2"


async def switch_revision(conn: Connection, pool_id: str, revision: int) -> bool:
    """Have a pool serve its wanted revision; return False where it already does, or wants another one by now."""
    return await conn.execute(_SWITCH, pool_id, revision) == "UPDATE 1"
