"""The bounds of pools whose number of replicas follows their load, and the load as gateways report it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from gateway.domain.pools.scaling import Bounds, Load

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class ScalingRow(msgspec.Struct, frozen=True):
    """A pool whose number of replicas follows its load."""

    pool_id: str
    min_replicas: int
    max_replicas: int
    down_after_s: int
    """Seconds for which a replica must not have been needed before it is removed."""
    decided_at: datetime.datetime | None
    """The time at which the number of replicas was changed last."""
    why: str
    """The reason for the last change."""
    start_s: float | None
    """Seconds that the pool's first replica took to become ready, the last time that it had none."""

    @property
    def bounds(self) -> Bounds:
        """The bounds that the operator set."""
        return Bounds(self.min_replicas, self.max_replicas, float(self.down_after_s))


_SET = """
    INSERT INTO pool_scaling AS s (pool_id, min_replicas, max_replicas, down_after_s) VALUES ($1, $2, $3, $4)
    ON CONFLICT (pool_id) DO UPDATE SET
        min_replicas = excluded.min_replicas, max_replicas = excluded.max_replicas, down_after_s = excluded.down_after_s
    WHERE (s.min_replicas, s.max_replicas, s.down_after_s) <> ($2, $3, $4)
"""


async def set_scaling(conn: Connection, pool_id: str, bounds: Bounds) -> None:
    """Let the number of a pool's replicas follow its load. The caller's transaction has locked the pool."""
    await conn.execute(_SET, pool_id, bounds.min_replicas, bounds.max_replicas, int(bounds.down_after_s))


_CLEAR = "DELETE FROM pool_scaling WHERE pool_id = $1"


async def clear_scaling(conn: Connection, pool_id: str) -> None:
    """Have the number of a pool's replicas set by operators. The caller's transaction has locked the pool."""
    await conn.execute(_CLEAR, pool_id)


_LIST = """
    SELECT pool_id, min_replicas, max_replicas, down_after_s, decided_at, why, start_s
    FROM pool_scaling WHERE pool_id = ANY ($1::text[])
"""


async def list_scaling(conn: Connection, pool_ids: Sequence[str]) -> dict[str, ScalingRow]:
    """Return the rows of the pools whose number of replicas follows their load, by the pool's id."""
    return {row["pool_id"]: ScalingRow(**row) for row in await conn.fetch(_LIST, pool_ids)}


class ScalingChange(msgspec.Struct, frozen=True):
    """A change of the number of a pool's replicas, by its load or by an operator."""

    id: str
    at: datetime.datetime
    before: int
    after: int
    why: str | None
    """The reason of the autoscaler; None for a change by an operator."""


_SCALINGS = """
    SELECT id, effective_at AS at, before, after, why FROM (
        SELECT id, sequence, effective_at, after::jsonb ->> 'why' AS why,
               (before::jsonb ->> 'num_replicas')::int AS before, (after::jsonb ->> 'num_replicas')::int AS after
        FROM audit_log
        WHERE organization_id = $1 AND object_id = $2
              AND event IN ('pool.scaled', 'pool.drained', 'pool.updated')) AS changes
    WHERE before <> after ORDER BY sequence DESC LIMIT $3
"""


async def list_scalings(conn: Connection, organization_id: str, pool_id: str, most: int) -> list[ScalingChange]:
    """Return the latest changes of the number of a pool's replicas, newest first."""
    return [ScalingChange(**row) for row in await conn.fetch(_SCALINGS, organization_id, pool_id, most)]


_REPORT = """
    INSERT INTO pool_loads (pool_id, gateway_id, at, load)
    SELECT each.pool_id, $1, clock_timestamp(), each.load::jsonb
    FROM unnest($2::text[], $3::text[]) AS each (pool_id, load) ORDER BY each.pool_id
    ON CONFLICT (pool_id, gateway_id) DO UPDATE SET at = excluded.at, load = excluded.load
"""
_WAKE = "SELECT pg_notify('lorikeet_changes', $1)"


async def report_loads(
    conn: Connection, gateway_id: str, loads: Mapping[str, Load], awaited: Sequence[str] = ()
) -> None:
    """Store the load of pools as a gateway observes it, by pool id.

    awaited: pools without a replica for which a request waits; agents hear of these at once.
    """
    texts = [msgspec.json.encode(each).decode() for each in loads.values()]
    await conn.execute(_REPORT, gateway_id, list(loads), texts)
    for pool_id in awaited:
        change = {"version": 0, "table": "pools", "id": pool_id, "project_id": None}
        await conn.execute(_WAKE, msgspec.json.encode(change).decode())


_FORGET = "DELETE FROM pool_loads WHERE at < clock_timestamp() - interval '1 minute'"


async def forget_loads(conn: Connection) -> None:
    """Delete the reports of gateways that have gone since."""
    await conn.execute(_FORGET)
