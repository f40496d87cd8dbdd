"""Limits of an organization, its projects and their keys, with the used and the reserved amount of each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from gateway.db.ids import new_id
from gateway.domain.limits.limit import Limit, Unit, Window

if TYPE_CHECKING:
    import asyncpg

    from gateway.db.pool import Connection, Database


class LimitState(msgspec.Struct, frozen=True):
    """A limit in its current window, with the used and the reserved amount."""

    limit: Limit
    used: int
    """The amount in the ledger."""
    reserved: int
    """The amount that gateways hold for requests that run, or are about to."""
    window_end: int | None
    """The end of the limit's current window in Unix seconds; None for a limit without a window."""

    @property
    def free(self) -> int:
        """The amount of the limit that is neither used nor reserved."""
        return max(0, self.limit.max - self.used - self.reserved)


_APPLYING = """
    SELECT id, organization_id, project_id, api_key_id, model, unit, period, max, hard, alert_percents FROM limits
    WHERE organization_id = $1 AND (project_id IS NULL OR project_id = $2) ORDER BY id
"""


async def load_limits(conn: Connection, organization_id: str, project_id: str) -> list[Limit]:
    """Return every limit that may concern a request of the project: its own, its keys', the organization's."""
    return [_limit(row) for row in await conn.fetch(_APPLYING, organization_id, project_id)]


LOAD_TIMEOUT_S = 5.0


class LimitLoader:
    """Loads the limits of a project for `Rules`.

    Raises one of `gateway.db.pool.FAILURES`: when the database fails or does not answer within LOAD_TIMEOUT_S.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def __call__(self, organization_id: str, project_id: str) -> list[Limit]:
        """Return all limits that apply to a project."""
        async with asyncio.timeout(LOAD_TIMEOUT_S), self._database.acquire() as conn:
            return await load_limits(conn, organization_id, project_id)


# The stored bytes are the sum over the project's distinct adapters' versions: the same content counts once.
_LIST = """
    SELECT l.id, l.organization_id, l.project_id, l.api_key_id, l.model, l.unit, l.period, l.max, l.hard,
           l.alert_percents,
           CASE WHEN l.unit = 'storage_bytes' THEN stored_bytes(l.organization_id, l.project_id)
                WHEN l.unit = 'enqueued_batch_tokens'
                    THEN enqueued_batch_tokens(l.organization_id, l.project_id, l.model)
                ELSE coalesce((SELECT settled FROM limit_accounts a
                               WHERE a.limit_id = l.id AND a.window_start = w.start), 0) END AS used,
           coalesce((SELECT sum(amount) FROM limit_leases s
                     WHERE s.limit_id = l.id AND s.window_start = w.start), 0)::bigint AS reserved,
           CASE l.period WHEN 'none' THEN NULL
                ELSE extract(epoch FROM w.start + ('1 ' || l.period)::interval)::bigint END AS window_end
    FROM limits l CROSS JOIN LATERAL (SELECT limit_window(l.period, now()) AS start) w
    WHERE l.organization_id = $1 AND l.project_id IS NOT DISTINCT FROM $2 AND ($3::text IS NULL OR l.id = $3)
    ORDER BY l.created_at, l.id
"""


async def list_limits(
    conn: Connection, organization_id: str, project_id: str | None, *, limit_id: str | None = None
) -> list[LimitState]:
    """Return the limits of a project and its keys, or with project_id None the organization's own; oldest first."""
    rows = await conn.fetch(_LIST, organization_id, project_id, limit_id)
    return [LimitState(_limit(row), row["used"], row["reserved"], row["window_end"]) for row in rows]


_UPSERT = """
    INSERT INTO limits AS l
        (id, organization_id, project_id, api_key_id, model, unit, period, max, hard, alert_percents)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
    ON CONFLICT (organization_id, project_id, api_key_id, model, unit, period, hard)
        DO UPDATE SET max = excluded.max, alert_percents = excluded.alert_percents
    RETURNING id
"""
_FIND = """
    SELECT id, max, alert_percents FROM limits
    WHERE organization_id = $1 AND project_id IS NOT DISTINCT FROM $2 AND api_key_id IS NOT DISTINCT FROM $3
        AND model IS NOT DISTINCT FROM $4 AND unit = $5 AND period = $6 AND hard = $7
"""
# Shares of another max are other thresholds, of which this window has announced none yet.
_UPDATE = """
    WITH forgotten AS (DELETE FROM limit_alerts a USING limits l WHERE l.id = $1 AND l.max <> $2
                       AND a.limit_id = l.id AND a.window_start = limit_window(l.period, now()))
    UPDATE limits SET max = $2, alert_percents = $3 WHERE id = $1 RETURNING id
"""


INSERT_TIMEOUT_S = 2.0
"""The most seconds that the insertion of a limit waits. Usage and changes of keys wait meanwhile."""


async def set_limit(conn: Connection, wanted: Limit) -> tuple[str, bool]:
    """Set a limit's max and thresholds, in one transaction. Return (id, whether the limit is new).

    wanted.id is ignored. Usage of the current window from before counts too: the schema sees to that.

    Raises asyncpg.ForeignKeyViolationError: when the project is not the organization's, or there is no such key.

    Raises one of `CONFLICTS`, or TimeoutError: when the ledger does not let the limit in soon.
    """
    identity = (
        wanted.organization_id,
        wanted.project_id,
        wanted.api_key_id,
        wanted.model,
        wanted.unit,
        wanted.window,
    )
    thresholds = list(wanted.alert_percents)
    async with conn.transaction():
        found = await conn.fetchrow(_FIND, *identity, wanted.hard)
        if found is not None:
            if (found["max"], found["alert_percents"]) != (wanted.max, thresholds):
                await conn.execute(_UPDATE, found["id"], wanted.max, thresholds)
            return found["id"], False
        limit_id = new_id("lim")
        made: str = await conn.fetchval(
            _UPSERT, limit_id, *identity, wanted.max, wanted.hard, thresholds, timeout=INSERT_TIMEOUT_S
        )
        return made, made == limit_id


_REMOVE = "DELETE FROM limits WHERE organization_id = $1 AND project_id IS NOT DISTINCT FROM $2 AND id = $3"


async def remove_limit(conn: Connection, organization_id: str, project_id: str | None, limit_id: str) -> bool:
    """Delete a limit and return whether there was one.

    project_id: the project that the limit bounds; None: the limit is the organization's.
    """
    return await conn.execute(_REMOVE, organization_id, project_id, limit_id) != "DELETE 0"


# The limits stay locked until the transaction ends, so that of two uploads the second one sees the first.
_STORAGE = """
    SELECT id, organization_id, project_id, api_key_id, model, unit, period, max, hard, alert_percents FROM limits
    WHERE organization_id = $1 AND (project_id IS NULL OR project_id = $2) AND unit = 'storage_bytes' AND hard
    ORDER BY id FOR NO KEY UPDATE
"""
_STORED = "SELECT stored_bytes($1, $2)"


async def lock_storage(conn: Connection, organization_id: str, project_id: str) -> None:
    """Lock the storage limits until the transaction ends.

    Lock before any change that the schema announces: changes of limits take both locks in this order, too.
    """
    await conn.execute(_STORAGE, organization_id, project_id)


async def exceeded_storage(conn: Connection, organization_id: str, project_id: str) -> tuple[Limit, int] | None:
    """Return a storage limit that is exceeded now, and how many bytes are stored.

    Call it in the transaction that stores: what it has stored already counts.
    """
    for row in await conn.fetch(_STORAGE, organization_id, project_id):
        stored: int = await conn.fetchval(_STORED, organization_id, row["project_id"])
        if stored > row["max"]:
            return _limit(row), stored
    return None


_ORGANIZATION = "SELECT organization_id FROM projects WHERE id = $1"

# Locked until the transaction ends, so that of two batches that begin the second one sees the first.
_ENQUEUED = """
    SELECT id, organization_id, project_id, api_key_id, model, unit, period, max, hard, alert_percents FROM limits
    WHERE organization_id = $1 AND (project_id IS NULL OR project_id = $2) AND unit = 'enqueued_batch_tokens' AND hard
    ORDER BY id FOR NO KEY UPDATE
"""
_NUM_ENQUEUED = "SELECT enqueued_batch_tokens($1, $2, $3)"


async def exceeded_enqueued(conn: Connection, project_id: str) -> tuple[Limit, int] | None:
    """Return a limit of enqueued batch tokens that is exceeded now, and the number of these tokens.

    Call it in the transaction in which a batch begins: the batch's lines already count.
    """
    organization_id = await conn.fetchval(_ORGANIZATION, project_id)
    for row in await conn.fetch(_ENQUEUED, organization_id, project_id):
        found: int = await conn.fetchval(_NUM_ENQUEUED, organization_id, row["project_id"], row["model"])
        if found > row["max"]:
            return _limit(row), found
    return None


_SMALLEST_STORAGE = """
    SELECT min(max) FROM limits
    WHERE organization_id = $1 AND (project_id IS NULL OR project_id = $2) AND unit = 'storage_bytes' AND hard
"""


async def max_storage_bytes(conn: Connection, organization_id: str, project_id: str) -> int | None:
    """Return how many bytes the project's adapters may have if nothing else is stored, or None without a limit."""
    most: int | None = await conn.fetchval(_SMALLEST_STORAGE, organization_id, project_id)
    return most


def _limit(row: asyncpg.Record) -> Limit:
    unit: Unit = row["unit"]
    window: Window = row["period"]
    percents: Sequence[int] = row["alert_percents"]
    return Limit(
        row["id"],
        row["organization_id"],
        row["project_id"],
        row["api_key_id"],
        row["model"],
        unit,
        window,
        row["max"],
        row["hard"],
        tuple(percents),
    )
