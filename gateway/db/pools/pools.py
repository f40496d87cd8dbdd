"""Pools as their operators know them: the name, the model, the number of replicas, and the projects that may use them.

A pool is changed by naming another wanted revision; only agents move the revision that serves (`agents`).
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from gateway.db.ids import new_id
from gateway.domain.pools.states import Access

if TYPE_CHECKING:
    from asyncpg import Record

    from gateway.db.pool import Connection


class PoolRow(msgspec.Struct, frozen=True):
    """A pool as operators set it, and the revisions that it serves and is to serve."""

    id: str
    organization_id: str
    """The organization whose operators manage the pool."""
    name: str
    num_replicas: int
    """The number of replicas that are to run."""
    access: Access
    revision: int | None
    """The revision that serves; None before the first one is ready."""
    wanted_revision: int
    """The revision that is to serve; another one than `revision` while a change is under way."""
    created_at: datetime.datetime
    placement: dict[str, str]
    """The labels that a host must have for replicas to start there."""
    exclusion: dict[str, list[str]]
    """The values that labels of a host must not have, by the labels' names."""


class Grant(msgspec.Struct, frozen=True):
    """An organization, or one project of it, that may use a pool whose access is "listed"."""

    organization_id: str
    project_id: str | None
    """The id of the project; None: all projects of the organization."""


_labels = msgspec.json.Decoder(dict[str, str])
_exclusion = msgspec.json.Decoder(dict[str, list[str]])

_CREATE = """
    INSERT INTO pools (id, organization_id, name, num_replicas, access, wanted_revision) VALUES ($1, $2, $3, $4, $5, 1)
    ON CONFLICT (name) WHERE removed_at IS NULL DO NOTHING
    RETURNING *
"""


async def create_pool(
    conn: Connection, organization_id: str, name: str, *, num_replicas: int, access: Access = "all"
) -> PoolRow | None:
    """Return the new pool, which wants its revision 1; None if a pool of the installation has this name.

    The caller's transaction adds revision 1 (`revisions.add_revision`).
    """
    row = await conn.fetchrow(_CREATE, new_id("pool"), organization_id, name, num_replicas, access)
    return pool_of(row) if row else None


_FIND = "SELECT * FROM pools WHERE organization_id = $1 AND name = $2 AND removed_at IS NULL"


async def find_pool(conn: Connection, organization_id: str, name: str) -> PoolRow | None:
    """Return the organization's pool of this name."""
    row = await conn.fetchrow(_FIND, organization_id, name)
    return pool_of(row) if row else None


_LOCK_BY_ID = "SELECT * FROM pools WHERE organization_id = $1 AND id = $2 AND removed_at IS NULL FOR NO KEY UPDATE"


async def lock_pool_by_id(conn: Connection, organization_id: str, pool_id: str) -> PoolRow | None:
    """Return the organization's pool with this id, which nobody else changes until the transaction ends."""
    row = await conn.fetchrow(_LOCK_BY_ID, organization_id, pool_id)
    return pool_of(row) if row else None


_COUNT = "SELECT count(*) FROM pools WHERE organization_id = $1 AND removed_at IS NULL"


async def count_pools(conn: Connection, organization_id: str) -> int:
    """Return how many pools the organization has."""
    return int(await conn.fetchval(_COUNT, organization_id))


_LOCK_KEY = 0x6C6F72706F6F6C73  # "lorpools"
_LOCK_ALL = "SELECT pg_advisory_xact_lock($1)"
_LOCK_ALL_SHARED = "SELECT pg_advisory_xact_lock_shared($1)"


async def lock_pools(conn: Connection) -> None:
    """Lock the installation's pools until the transaction ends: nobody else decides about them.

    The first lock of its transaction: whoever has it may wait for rows of pools, organizations and projects.
    """
    await conn.execute(_LOCK_ALL, _LOCK_KEY)


async def keep_pools(conn: Connection) -> None:
    """Keep the installation's pools from being made or removed until the transaction ends.

    Several transactions may hold this lock at once. It is the first lock of its transaction, as with `lock_pools`.
    """
    await conn.execute(_LOCK_ALL_SHARED, _LOCK_KEY)


_HAS_ANY = "SELECT EXISTS (SELECT FROM pools)"


async def had_pools(conn: Connection) -> bool:
    """Tell whether the installation has, or ever had, a pool."""
    return bool(await conn.fetchval(_HAS_ANY))


_HAD = "SELECT EXISTS (SELECT FROM pools WHERE name = $1)"


async def had_pool(conn: Connection, name: str) -> bool:
    """Tell whether the installation has, or ever had, a pool of this name."""
    return bool(await conn.fetchval(_HAD, name))


_SCALE = "UPDATE pools SET num_replicas = $2 WHERE id = $1 AND num_replicas <> $2"


async def scale_pool(conn: Connection, pool_id: str, num_replicas: int) -> None:
    """Set the number of replicas of a pool."""
    await conn.execute(_SCALE, pool_id, num_replicas)


_PLACE = "UPDATE pools SET placement = $2::jsonb WHERE id = $1 AND placement <> $2::jsonb"


async def place_pool(conn: Connection, pool_id: str, placement: Mapping[str, str]) -> None:
    """Set the labels that a host must have for replicas of a pool to start there."""
    await conn.execute(_PLACE, pool_id, msgspec.json.encode(placement).decode())


_EXCLUDE = "UPDATE pools SET exclusion = $2::jsonb WHERE id = $1 AND exclusion <> $2::jsonb"


async def exclude_hosts(conn: Connection, pool_id: str, exclusion: Mapping[str, Sequence[str]]) -> None:
    """Set the values of labels that a host must not have for replicas of a pool to start there, by name."""
    await conn.execute(_EXCLUDE, pool_id, msgspec.json.encode(exclusion).decode())


_WANT = "UPDATE pools SET wanted_revision = $2 WHERE id = $1 AND wanted_revision <> $2"


async def want_revision(conn: Connection, pool_id: str, revision: int) -> None:
    """Set the revision that a pool is to serve."""
    await conn.execute(_WANT, pool_id, revision)


_TAKE_BACK = "UPDATE pools SET wanted_revision = $3 WHERE id = $1 AND wanted_revision = $2"


async def want_earlier_revision(conn: Connection, pool_id: str, failed: int, back_to: int) -> None:
    """Set an earlier revision as wanted again in place of a failed one, unless another one is wanted by now.

    failed, back_to: the numbers of the two revisions.
    """
    await conn.execute(_TAKE_BACK, pool_id, failed, back_to)


_SET_ACCESS = "UPDATE pools SET access = $2 WHERE id = $1 AND access <> $2"
_CLEAR_GRANTS = "DELETE FROM pool_grants WHERE pool_id = $1"
_GRANT = """
    INSERT INTO pool_grants (pool_id, organization_id, project_id)
    SELECT $1, g.organization_id, g.project_id FROM unnest($2::text[], $3::text[]) AS g (organization_id, project_id)
"""


async def set_access(conn: Connection, pool_id: str, access: Access, grants: Sequence[Grant] = ()) -> None:
    """Set the tenants that may use a pool. grants: the tenants if access is "listed"; they replace the ones before."""
    await conn.execute(_SET_ACCESS, pool_id, access)
    await conn.execute(_CLEAR_GRANTS, pool_id)
    if grants:
        await conn.execute(
            _GRANT, pool_id, [each.organization_id for each in grants], [each.project_id for each in grants]
        )


_REMOVE = "UPDATE pools SET removed_at = now(), num_replicas = 0 WHERE id = $1 AND removed_at IS NULL"


async def remove_pool(conn: Connection, pool_id: str) -> None:
    """Mark a pool as removed, and free its name. The row stays, since the ledger names the pool."""
    await conn.execute(_REMOVE, pool_id)


def pool_of(row: Record) -> PoolRow:
    """Return the pool of a database row with all its columns."""
    values = {name: row[name] for name in PoolRow.__struct_fields__}
    values["placement"] = _labels.decode(row["placement"])
    values["exclusion"] = _exclusion.decode(row["exclusion"])
    return PoolRow(**values)
