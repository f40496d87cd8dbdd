"""Rows of the ledger that an operator writes: cost without tokens, with its reason and the usage that it corrects."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import msgspec

from gateway.db.ids import new_id
from gateway.db.pool import replan

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class Adjustment(msgspec.Struct, frozen=True):
    """A correction of the amount that a tenant pays: a cost without tokens."""

    id: str
    project_id: str
    cost_nanos: int
    """The cost; below 0 it is in the tenant's favor."""
    reason: str
    created_at: datetime.datetime
    period: datetime.date
    """The month that bills the cost."""
    corrects_period: datetime.date | None
    """The closed month that the cost is about."""
    corrects_request_id: str | None


_ENSURE_TODAY = "SELECT ensure_ledger_day((clock_timestamp() AT TIME ZONE 'UTC')::date)"
_LOCK_LEDGER = "LOCK TABLE ONLY ledger IN ROW EXCLUSIVE MODE"
_WRITE = """
    INSERT INTO ledger (
        request_id, attempt, revision, kind, organization_id, project_id, api_key_id, endpoint, model, adapter_class,
        service_tier, stream, prompt_tokens, cached_tokens, completion_tokens, discarded_tokens, finish_reason,
        queue_ms, prefill_ms, decode_ms, adapter_load_bytes, created_at, finished_at,
        period, corrects_period, corrects_request_id, reason, price_version,
        input_cost_nanos, cached_cost_nanos, output_cost_nanos, cost_nanos, list_cost_nanos)
    SELECT $1, 0, 0, 'adjustment', $2, $3, '', '', '', 'none', 'default', false, 0, 0, 0, 0, '', 0, 0, 0, 0,
           c.now, c.now, greatest(month_of(c.now), open_from($2)), $6::date, $7, $5,
           (SELECT max(version) FROM price_versions WHERE organization_id = $2 AND effective_at <= c.now),
           0, 0, 0, $4, $4
    FROM (SELECT clock_timestamp() AS now) c
    RETURNING request_id AS id, project_id, cost_nanos, reason, created_at, period, corrects_period, corrects_request_id
"""


async def write_adjustment(
    conn: Connection,
    organization_id: str,
    project_id: str,
    cost_nanos: int,
    *,
    reason: str,
    corrects_period: datetime.date | None,
    corrects_request_id: str | None,
) -> Adjustment:
    """Write an adjustment in the caller's transaction. Limits of cost and a prepaid balance count it like usage.

    corrects_period: the first day of the closed month that is corrected; None: none. corrects_request_id: the request
    that is corrected; None: none.
    """
    await conn.execute(_ENSURE_TODAY)
    await conn.execute(_LOCK_LEDGER)
    row = await conn.fetchrow(
        _WRITE, new_id("adj"), organization_id, project_id, cost_nanos, reason, corrects_period, corrects_request_id
    )
    assert row is not None
    return Adjustment(*row)


_OPEN_FROM = "SELECT open_from($1)"


async def is_closed(conn: Connection, organization_id: str, period: datetime.date) -> bool:
    """Tell whether a period of an organization is closed."""
    return bool(period < await conn.fetchval(_OPEN_FROM, organization_id))


_MONTHS = """
    SELECT DISTINCT coalesce(s.corrects_period, s.period) AS month
    FROM (
        SELECT corrects_period, period FROM period_sums
        WHERE organization_id = $1 AND project_id = $2 AND kind = 'usage'
        UNION ALL
        SELECT corrects_period, period FROM rollup_queue
        WHERE organization_id = $1 AND project_id = $2 AND kind = 'usage'
    ) s
    ORDER BY month DESC
"""
_PERIOD_OF = """
    SELECT period FROM ledger
    WHERE request_id = $1 AND organization_id = $2 AND project_id = $3
        AND created_at >= $4::date::timestamp AT TIME ZONE 'UTC'
        AND created_at < ($4::date + interval '1 month') AT TIME ZONE 'UTC'
    ORDER BY attempt, revision LIMIT 1
"""


async def period_of_request(
    conn: Connection, organization_id: str, project_id: str, request_id: str
) -> datetime.date | None:
    """Return the month that bills a request of the project, or None where the ledger has no such request."""
    await replan(conn)
    for row in await conn.fetch(_MONTHS, organization_id, project_id):  # the latest first: only its days are locked
        period: datetime.date | None = await conn.fetchval(
            _PERIOD_OF, request_id, organization_id, project_id, row["month"]
        )
        if period is not None:
            return period
    return None


# A month before, for the clock may have been set back over the end of one that was closed.
_SINCE = """
    SELECT (min(s.period) - interval '1 month') AT TIME ZONE 'UTC'
    FROM (
        SELECT period FROM period_sums WHERE organization_id = $1 AND project_id = $2 AND kind = 'adjustment'
        UNION ALL
        SELECT period FROM rollup_queue WHERE organization_id = $1 AND project_id = $2 AND kind = 'adjustment'
    ) s WHERE $3::date IS NULL OR s.period = $3
"""
_LIST = """
    SELECT request_id AS id, project_id, cost_nanos, reason, created_at, period, corrects_period, corrects_request_id
    FROM ledger
    WHERE organization_id = $1 AND project_id = $2 AND ($3::date IS NULL OR period = $3) AND kind = 'adjustment'
        AND created_at >= $4 AND ($3::date IS NULL OR created_at < ($3::date + interval '1 month') AT TIME ZONE 'UTC')
    ORDER BY created_at, request_id
"""


async def list_adjustments(
    conn: Connection, organization_id: str, project_id: str, period: datetime.date | None = None
) -> list[Adjustment]:
    """Return the project's adjustments, oldest first: those of a month, or all."""
    since: datetime.datetime | None = await conn.fetchval(_SINCE, organization_id, project_id, period)
    if since is None:
        return []
    await replan(conn)
    return [Adjustment(*row) for row in await conn.fetch(_LIST, organization_id, project_id, period, since)]


_ADJUSTED = """
    SELECT project_id FROM period_sums WHERE organization_id = $1 AND period = $2 AND kind = 'adjustment'
    UNION
    SELECT project_id FROM rollup_queue WHERE organization_id = $1 AND period = $2 AND kind = 'adjustment'
"""


async def adjusted_projects(conn: Connection, organization_id: str, period: datetime.date) -> set[str]:
    """Return the projects that have adjustments in a month."""
    return {row["project_id"] for row in await conn.fetch(_ADJUSTED, organization_id, period)}


class CarriedAmount(msgspec.Struct, frozen=True):
    """An amount that a month owes a project."""

    project_id: str
    nanos: int


# The largest adjustment; an amount beyond it stays on the invoice.
_BELOW_ZERO = """
    SELECT project_id, saturated(-sum(cost_nanos)) AS nanos FROM period_sums
    WHERE organization_id = $1 AND period = $2 GROUP BY project_id HAVING sum(cost_nanos) < 0 ORDER BY project_id
"""
_ENSURE_LAST_DAY = "SELECT ensure_ledger_day(($1::date + interval '1 month' - interval '1 day')::date)"
_CARRY = """
    INSERT INTO ledger (
        request_id, attempt, revision, kind, organization_id, project_id, api_key_id, endpoint, model, adapter_class,
        service_tier, stream, prompt_tokens, cached_tokens, completion_tokens, discarded_tokens, finish_reason,
        queue_ms, prefill_ms, decode_ms, adapter_load_bytes, created_at, finished_at, period, reason, price_version,
        input_cost_nanos, cached_cost_nanos, output_cost_nanos, cost_nanos, list_cost_nanos)
    SELECT c.id, 0, 0, 'adjustment', $1, c.project_id, '', '', '', 'none', 'default', false, 0, 0, 0, 0,
           'carried_over', 0, 0, 0, 0, m.last, m.last, $2, 'Below zero: carried over as credit',
           (SELECT max(version) FROM price_versions WHERE organization_id = $1 AND effective_at <= m.last),
           0, 0, 0, c.nanos, c.nanos
    FROM unnest($3::text[], $4::text[], $5::bigint[]) AS c (id, project_id, nanos),
        (SELECT ($2::date + interval '1 month') AT TIME ZONE 'UTC' - interval '1 microsecond' AS last) m
"""


async def carry_over(conn: Connection, organization_id: str, period: datetime.date) -> list[CarriedAmount]:
    """Raise the month's cost of every project with a negative cost to 0, by an adjustment, and return the amounts.

    Called in the transaction that closes the month, whose sums are complete. The amounts have to be granted as credit.
    """
    found = [CarriedAmount(**row) for row in await conn.fetch(_BELOW_ZERO, organization_id, period)]
    if found:
        ids = [new_id("adj") for _ in found]
        await conn.execute(_ENSURE_LAST_DAY, period)
        columns = [each.project_id for each in found], [each.nanos for each in found]
        await conn.execute(_CARRY, organization_id, period, ids, *columns)
    return found
