"""Hosts that could not prepare the model of a revision: the planner leaves them out until their agents succeed."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from gateway.db.pool import Connection

MAX_WHY_CHARS = 500


class HostFailure(msgspec.Struct, frozen=True):
    """A host that could not prepare the model of a revision."""

    host_id: str
    pool_id: str
    revision: int
    why: str
    num_failures: int
    """Failures in a row."""
    retry_at: datetime.datetime
    """The time at which the host's agent tries again."""


_NOTE = """
    INSERT INTO host_failures AS f (host_id, pool_id, revision, why, failed_at, retry_at)
    VALUES ($1, $2, $3, $4, clock_timestamp(), clock_timestamp() + $5::interval)
    ON CONFLICT (host_id, pool_id, revision) DO UPDATE SET
        why = excluded.why, num_failures = f.num_failures + 1, failed_at = excluded.failed_at,
        retry_at = excluded.retry_at
"""


async def note_failure(
    conn: Connection, host_id: str, pool_id: str, revision: int, why: str, retry_after: datetime.timedelta
) -> None:
    """Record that a host failed to prepare a revision, so that no replica of it starts there.

    retry_after: the time until the host's agent tries again.
    """
    await conn.execute(_NOTE, host_id, pool_id, revision, why[:MAX_WHY_CHARS], retry_after)


_CLEAR = "DELETE FROM host_failures WHERE (host_id, pool_id, revision) = ($1, $2, $3)"


async def clear_failure(conn: Connection, host_id: str, pool_id: str, revision: int) -> None:
    """Delete the record of a host's failure to prepare a revision, so that replicas may start there again."""
    await conn.execute(_CLEAR, host_id, pool_id, revision)


_CLEAR_ALL = "DELETE FROM host_failures WHERE host_id = $1"


async def clear_failures(conn: Connection, host_id: str) -> None:
    """Delete all records of a host's failures, since a new agent may have what the one before lacked."""
    await conn.execute(_CLEAR_ALL, host_id)


_LIST = """
    SELECT f.host_id, f.pool_id, f.revision, f.why, f.num_failures, f.retry_at
    FROM host_failures f JOIN pools p ON p.id = f.pool_id
    WHERE p.removed_at IS NULL AND f.revision IN (p.revision, p.wanted_revision)
    ORDER BY f.host_id, f.pool_id, f.revision
"""


async def list_failures(conn: Connection) -> list[HostFailure]:
    """Return the failures of all hosts at revisions that serve or are wanted."""
    return [HostFailure(**row) for row in await conn.fetch(_LIST)]


_OTHERS = """
    SELECT EXISTS (SELECT FROM hosts h
        WHERE h.lease_until > clock_timestamp() AND h.removed_at IS NULL AND NOT h.is_drained AND h.id <> $1
          AND NOT EXISTS (SELECT FROM host_failures f WHERE (f.host_id, f.pool_id, f.revision) = (h.id, $2, $3)))
"""


async def may_others_prepare(conn: Connection, host_id: str, pool_id: str, revision: int) -> bool:
    """Tell whether a host with an agent, other than this one, has not failed at the model of a revision."""
    may: bool = await conn.fetchval(_OTHERS, host_id, pool_id, revision)
    return may
