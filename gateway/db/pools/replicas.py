"""Replicas: engine processes of a pool's revision, each on one host.

An agent changes only rows of its own host, and only while it holds the host's lease: every statement of an agent names
the generation of that lease (`hosts`) and the generation of the replica's start, and changes nothing when either has
moved on.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

import msgspec

from gateway.db.ids import new_id
from gateway.domain.pools.states import ReplicaState

if TYPE_CHECKING:
    from asyncpg import Record

    from gateway.db.pool import Connection


class ReplicaRow(msgspec.Struct, frozen=True):
    """A replica of a pool's revision."""

    id: str
    pool_id: str
    revision: int
    host_id: str | None
    """The host whose agent runs the engine; None for an engine that somebody else runs."""
    address: str | None
    """The ZeroMQ endpoint, or the URL of a server of another maker; None until the engine was started once."""
    gpu: int | None
    """The index of the accelerator on the host; None where the replica computes on processors."""
    state: ReplicaState
    generation: int
    """The number of the replica's latest start; 0 before the first."""
    why: str
    """The reason for the state, or the progress in it."""
    since: datetime.datetime
    num_failures: int
    """Failures in a row."""
    retry_at: datetime.datetime | None
    """The time of the next start after a failure."""
    replace: bool
    """True if another replica is to take the place of this one; where both fit, it is ready before this one drains."""
    created_at: datetime.datetime
    public_key: str | None = None
    """The key that the engine proves where its address is on TCP."""
    full_since: datetime.datetime | None = None
    """The time since which the replica waits for room on the machines of a cluster; None if it does not wait."""


_fields = itemgetter(*ReplicaRow.__struct_fields__)

_CREATE = "INSERT INTO replicas (id, pool_id, revision, host_id, gpu) VALUES ($1, $2, $3, $4, $5) RETURNING *"


async def create_replica(
    conn: Connection, pool_id: str, revision: int, *, host_id: str, gpu: int | None = None
) -> ReplicaRow:
    """Return a new replica that its host's agent has to start.

    revision: the number of the pool's revision. gpu: the index of the host's accelerator; None: the host's processors.
    """
    row = await conn.fetchrow(_CREATE, new_id("replica"), pool_id, revision, host_id, gpu)
    assert row is not None
    return replica_of(row)


_CONNECT = """
    INSERT INTO replicas (id, pool_id, revision, address, public_key, state) VALUES ($1, $2, $3, $4, $5, 'ready')
    RETURNING *
"""


async def add_running_replica(
    conn: Connection, pool_id: str, revision: int, address: str, public_key: str | None = None
) -> ReplicaRow:
    """Return a new replica for an engine that somebody else runs at a ZeroMQ endpoint, or for a server at a URL.

    public_key: as for `ReplicaRow`.
    """
    row = await conn.fetchrow(_CONNECT, new_id("replica"), pool_id, revision, address, public_key)
    assert row is not None
    return replica_of(row)


_FIND = "SELECT r.* FROM replicas r JOIN pools p ON p.id = r.pool_id WHERE p.organization_id = $1 AND r.id = $2"


async def find_replica(conn: Connection, organization_id: str, replica_id: str) -> ReplicaRow | None:
    """Return a replica of one of the organization's pools."""
    row = await conn.fetchrow(_FIND, organization_id, replica_id)
    return replica_of(row) if row else None


_ALL = """
    SELECT * FROM replicas WHERE state <> 'stopped' AND (pool_id = ANY ($1::text[]) OR $1 IS NULL)
    ORDER BY created_at, id
"""


async def list_all_replicas(conn: Connection, pool_ids: Sequence[str] | None = None) -> list[ReplicaRow]:
    """Return all replicas that have not been stopped, oldest first; with pool_ids, those of these pools alone."""
    return [replica_of(row) for row in await conn.fetch(_ALL, pool_ids)]


_BEGIN = """
    UPDATE replicas r SET generation = r.generation + 1, address = $3, state = 'loading', why = $4, retry_at = NULL,
        public_key = $5, full_since = NULL, version = NULL, protocol = NULL
    FROM hosts h WHERE r.id = $1 AND h.id = r.host_id AND h.generation = $2 AND h.lease_until > clock_timestamp()
        AND r.state IN ('starting', 'failed') RETURNING r.generation
"""


async def begin_start(
    conn: Connection,
    replica_id: str,
    host_generation: int,
    *,
    address: str,
    public_key: str | None = None,
    why: str = "",
) -> int | None:
    """Take the next generation of a replica, just before its process is started; return it.

    None: another agent has the host, or the replica is not to be started any more. Nothing may be started then.
    public_key: the key of an engine on TCP; None: the engine listens on a socket of its host. why: the reason for the
    start, as operators see it.
    """
    generation: int | None = await conn.fetchval(_BEGIN, replica_id, host_generation, address, why, public_key)
    return generation


_MOVE = """
    UPDATE replicas r SET state = $4, why = $5,
        num_failures = CASE $4 WHEN 'ready' THEN 0 WHEN 'failed' THEN r.num_failures + 1 ELSE r.num_failures END,
        retry_at = CASE WHEN $4 = 'failed' THEN clock_timestamp() + $6::interval END
    FROM hosts h WHERE r.id = $1 AND h.id = r.host_id AND h.generation = $2 AND r.generation = $3
        AND r.state <> 'stopped' AND r.state = ANY ($7::text[]) AND (r.state, r.why) IS DISTINCT FROM ($4, $5)
"""
_MAY_FOLLOW: dict[ReplicaState, list[ReplicaState]] = {
    "loading": ["starting", "loading", "ready", "failed"],
    "ready": ["loading", "ready"],
    "draining": ["starting", "loading", "ready", "draining", "failed"],
    "stopped": ["starting", "loading", "ready", "draining", "failed"],
    "failed": ["starting", "loading", "ready", "failed"],
}
"""The states that a replica may come from, for each state that it may be moved to."""


async def move_replica(
    conn: Connection,
    replica_id: str,
    host_generation: int,
    generation: int,
    state: ReplicaState,
    why: str = "",
    *,
    retry_after: datetime.timedelta = datetime.timedelta(0),
) -> bool:
    """Change a replica's state; return whether that changed its row.

    Return False where another agent has the host, the replica was started again since, or the replica's present state
    does not lead to the new one (a draining replica does not become ready). host_generation, generation: the
    generations of the agent's lease and of the replica's start. why: the reason in words. retry_after: the time until a
    failed replica is started again.
    """
    done = await conn.execute(
        _MOVE, replica_id, host_generation, generation, state, why[:500], retry_after, _MAY_FOLLOW[state]
    )
    return done == "UPDATE 1"


_NOTE_SOFTWARE = """
    UPDATE replicas r SET version = $4, protocol = $5
    FROM hosts h WHERE r.id = $1 AND h.id = r.host_id AND h.generation = $2 AND r.generation = $3
        AND (r.version, r.protocol) IS DISTINCT FROM ($4, $5)
"""


async def note_software(
    conn: Connection, replica_id: str, host_generation: int, generation: int, version: str, protocol: str
) -> None:
    """Record the version of a replica's engine, and the protocol that it speaks."""
    await conn.execute(_NOTE_SOFTWARE, replica_id, host_generation, generation, version, protocol)


_AWAIT_START = """
    UPDATE replicas r SET state = 'starting', why = $4, retry_at = NULL,
        full_since = CASE WHEN $5 THEN coalesce(r.full_since, clock_timestamp()) END
    FROM hosts h WHERE r.id = $1 AND h.id = r.host_id AND h.generation = $2 AND r.generation = $3
        AND r.state IN ('starting', 'loading', 'ready', 'failed')
        AND (r.state, r.why, r.full_since IS NOT NULL) IS DISTINCT FROM ('starting', $4, $5)
"""


async def await_start(
    conn: Connection, replica_id: str, host_generation: int, generation: int, why: str, *, is_full: bool = False
) -> bool:
    """Record that a replica waits to be started by its host's agent; return whether that changed its row.

    The replica's process was ended, or could not be started yet, which is no failure of the replica. is_full: True if
    machines of a cluster could run the replica, but have no room now.
    """
    done = await conn.execute(_AWAIT_START, replica_id, host_generation, generation, why, is_full)
    return done == "UPDATE 1"


_DRAIN = """
    UPDATE replicas SET state = CASE WHEN generation = 0 OR host_id IS NULL THEN 'stopped' ELSE 'draining' END, why = $2
    WHERE id = ANY ($1::text[]) AND state NOT IN ('draining', 'stopped')
"""


async def drain_replicas(conn: Connection, replica_ids: Sequence[str], why: str) -> None:
    """Let replicas take no new requests; their agents stop them once the running ones have ended."""
    await conn.execute(_DRAIN, list(replica_ids), why)


_LOSE = "UPDATE replicas SET state = 'stopped', why = $2 WHERE id = $1 AND state <> 'stopped'"


async def lose_replica(conn: Connection, replica_id: str, why: str) -> None:
    """Record that a replica has ended whose host has no agent. An agent that comes back ends the replica's engine."""
    await conn.execute(_LOSE, replica_id, why)


_LOSE_ALL = "UPDATE replicas SET state = 'stopped', why = $2 WHERE host_id = $1 AND state <> 'stopped'"


async def lose_replicas_of(conn: Connection, host_id: str, why: str) -> None:
    """Record that all replicas of a host have ended."""
    await conn.execute(_LOSE_ALL, host_id, why)


_REPLACE = "UPDATE replicas SET replace = true WHERE id = ANY ($1::text[]) AND state NOT IN ('draining', 'stopped')"


async def replace_replicas(conn: Connection, replica_ids: Sequence[str]) -> None:
    """Mark replicas to be replaced by new ones."""
    await conn.execute(_REPLACE, list(replica_ids))


_FORGET = "DELETE FROM replicas WHERE state = 'stopped' AND since < now() - $1::interval"


async def forget_stopped(conn: Connection, age: datetime.timedelta) -> None:
    """Delete the rows of replicas that were stopped longer ago than `age`."""
    await conn.execute(_FORGET, age)


def replica_of(row: Record) -> ReplicaRow:
    """Return the replica of a database row with all its columns."""
    return ReplicaRow(*_fields(row))
