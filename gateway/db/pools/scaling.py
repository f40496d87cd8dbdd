"""Decides the number of replicas of pools, by the load that gateways report.

One agent at a time decides, as the planner does. Times are of PostgreSQL's clock, since any agent may decide next.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.db.organization import audit
from gateway.db.pools.planning import may_plan
from gateway.domain.pools.scaling import Bounds, Decision, Load, Memory, PoolSnapshot, combined_load, decide

if TYPE_CHECKING:
    from asyncpg import Record

    from gateway.db.pool import Connection

FRESH = datetime.timedelta(seconds=10)
"""The age from which a gateway's report of its load no longer counts."""

_memory = msgspec.json.Decoder(Memory | None)
_load = msgspec.json.Decoder(Load)


class ReplicaCountChange(msgspec.Struct, frozen=True):
    """A change of the number of a pool's replicas."""

    pool_id: str
    pool: str
    """The name of the pool."""
    before: int
    """The number of replicas before the change."""
    after: int
    """The number of replicas from now on."""
    why: str
    """The reason as a sentence."""


class _Decided(msgspec.Struct, frozen=True):
    """A decision about one pool."""

    row: Any
    """The pool's row of `_SNAPSHOTS`."""
    decision: Decision

    @property
    def moves(self) -> bool:
        """True if the decision changes the number of replicas."""
        return bool(self.decision.num_replicas != self.row["num_replicas"])

    @property
    def change(self) -> ReplicaCountChange:
        """The change that is announced, where the number of replicas changes."""
        row, decision = self.row, self.decision
        return ReplicaCountChange(row["pool_id"], row["name"], row["num_replicas"], decision.num_replicas, decision.why)

    @property
    def learns(self) -> bool:
        """True if the state that the decision remembers differs from the stored one."""
        return bool(self.decision.memory != _memory.decode(self.row["memory"]))


_ANY = "SELECT EXISTS (SELECT FROM pool_scaling)"
_SNAPSHOTS = """
    SELECT s.pool_id, p.organization_id, p.name, s.min_replicas, s.max_replicas, s.down_after_s,
           s.memory::text AS memory, p.num_replicas, p.revision <> p.wanted_revision AS is_changing,
           (SELECT count(*) FROM replicas r WHERE (r.pool_id, r.revision) = (p.id, p.revision)
                AND r.state = 'ready' AND NOT r.replace AND r.host_id IS NOT NULL) AS num_ready,
           ARRAY (SELECT l.load::text FROM pool_loads l
                  WHERE l.pool_id = s.pool_id AND l.at > clock_timestamp() - $2::interval) AS loads,
           extract(epoch FROM clock_timestamp())::float8 AS now_s
    FROM pool_scaling s JOIN pools p ON p.id = s.pool_id
    WHERE p.removed_at IS NULL AND p.revision IS NOT NULL AND (s.pool_id = $1 OR $1 IS NULL) ORDER BY s.pool_id
"""
_LOCK_POOLS = "SELECT FROM pools WHERE id = ANY ($1::text[]) ORDER BY id FOR NO KEY UPDATE"
_LOCK_SCALING = "SELECT FROM pool_scaling WHERE pool_id = ANY ($1::text[]) ORDER BY pool_id FOR NO KEY UPDATE"
_SCALE = """
    UPDATE pools SET num_replicas = $3 WHERE id = $1 AND num_replicas = $2 AND removed_at IS NULL
        AND EXISTS (SELECT FROM pool_scaling s WHERE s.pool_id = pools.id
                    AND (s.min_replicas, s.max_replicas, s.down_after_s) = ($4, $5, $6))
"""
_REMEMBER = """
    UPDATE pool_scaling SET memory = $2::jsonb, start_s = $3,
        decided_at = CASE WHEN $4::text IS NULL THEN decided_at ELSE clock_timestamp() END, why = coalesce($4, why)
    WHERE pool_id = $1
"""


async def scale_pools(conn: Connection, host_id: str, host_generation: int) -> list[ReplicaCountChange]:
    """Decide and store the number of replicas of each pool with bounds; return the changes.

    host_id, host_generation: those of the agent that decides. Nothing is decided where it has lost its lease, or where
    another agent plans just now.
    """
    if not await conn.fetchval(_ANY):
        return []
    async with conn.transaction():
        if not await may_plan(conn, host_id, host_generation):
            return []
        decided = [_Decided(row, _decision(row)) for row in await conn.fetch(_SNAPSHOTS, None, FRESH)]
        writing = [each for each in decided if each.moves or each.learns]
        await _lock(conn, writing)
        changes = []
        for each in writing:
            if each.moves and not await _scale(conn, each.row, each.decision.num_replicas):
                continue  # an operator has changed it since
            if each.moves:
                changes.append(each)
            memory = each.decision.memory
            await conn.execute(
                _REMEMBER,
                each.row["pool_id"],
                msgspec.json.encode(memory).decode(),
                memory.start_s,
                each.decision.why if each.moves else None,
            )
        for each in sorted(changes, key=lambda change: str(change.row["organization_id"])):
            await _record(conn, each.row, each.decision)
    return [each.change for each in changes]


async def _lock(conn: Connection, writing: Sequence[_Decided]) -> None:
    """Lock all rows that will be changed before the first change, which locks the counter of changes for everybody.

    An operator's transaction may hold one of the rows while it waits for the counter; so a transaction that has the
    counter must not wait for a row.
    """
    moving = [each.row["pool_id"] for each in writing if each.moves]
    if moving:
        await conn.execute(_LOCK_POOLS, moving)
    if writing:
        await conn.execute(_LOCK_SCALING, [each.row["pool_id"] for each in writing])


async def _scale(conn: Connection, row: Record, num_replicas: int) -> bool:
    """Change the number of a pool's replicas; return False where the number or its bounds changed meanwhile."""
    bounds = row["min_replicas"], row["max_replicas"], row["down_after_s"]
    done = await conn.execute(_SCALE, row["pool_id"], row["num_replicas"], num_replicas, *bounds)
    return bool(done == "UPDATE 1")


async def present_decision(conn: Connection, pool_id: str) -> Decision | None:
    """Return the decision about a pool that would be made now.

    None where its number of replicas does not follow its load, or where it has not served yet.
    """
    row = await conn.fetchrow(_SNAPSHOTS, pool_id, FRESH)
    return None if row is None else _decision(row)


def _decision(row: Record) -> Decision:
    seen = PoolSnapshot(
        row["num_replicas"],
        row["num_ready"],
        combined_load([_load.decode(each) for each in row["loads"]]),
        is_changing=row["is_changing"],
    )
    bounds = Bounds(row["min_replicas"], row["max_replicas"], float(row["down_after_s"]))
    return decide(bounds, _memory.decode(row["memory"]), seen, row["now_s"])


async def _record(conn: Connection, row: Record, decision: Decision) -> None:
    author = audit.Author(
        organization_id=row["organization_id"],
        kind="system",
        id="autoscaler",
        email=None,
        address="",
        request_id="",
    )
    await audit.record(
        conn,
        author,
        "pool.scaled",
        row["pool_id"],
        before={"num_replicas": row["num_replicas"]},
        after={"num_replicas": decision.num_replicas, "why": decision.why},
    )
