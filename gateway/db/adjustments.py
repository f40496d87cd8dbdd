"""Rows of the ledger that an operator writes: cost without tokens, with its reason, and what it corrects."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import msgspec

from gateway.db.ids import new_id

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class Adjustment(msgspec.Struct, frozen=True):
    """cost_nanos < 0 is in the tenant's favor. period: the month that bills it; corrects_period: a closed one that it
    is about."""

    id: str
    project_id: str
    cost_nanos: int
    reason: str
    created_at: datetime.datetime
    period: datetime.date
    corrects_period: datetime.date | None
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
    """In the caller's transaction. Limits of cost and a prepaid balance count it like usage."""
    await conn.execute(_ENSURE_TODAY)
    await conn.execute(_LOCK_LEDGER)
    row = await conn.fetchrow(
        _WRITE, new_id("adj"), organization_id, project_id, cost_nanos, reason, corrects_period, corrects_request_id
    )
    assert row is not None
    return Adjustment(*row)


_OPEN_FROM = "SELECT open_from($1)"


async def is_closed(conn: Connection, organization_id: str, period: datetime.date) -> bool:
    return bool(period < await conn.fetchval(_OPEN_FROM, organization_id))


_PERIOD_OF = "SELECT period FROM ledger WHERE request_id = $1 AND organization_id = $2 AND project_id = $3 LIMIT 1"


async def period_of_request(
    conn: Connection, organization_id: str, project_id: str, request_id: str
) -> datetime.date | None:
    """The month that bills a request of the project; None where the ledger has no such request."""
    period: datetime.date | None = await conn.fetchval(_PERIOD_OF, request_id, organization_id, project_id)
    return period


_LIST = """
    SELECT request_id AS id, project_id, cost_nanos, reason, created_at, period, corrects_period, corrects_request_id
    FROM ledger
    WHERE organization_id = $1 AND project_id = $2 AND ($3::date IS NULL OR period = $3) AND kind = 'adjustment'
    ORDER BY created_at, request_id
"""


async def list_adjustments(
    conn: Connection, organization_id: str, project_id: str, period: datetime.date | None = None
) -> list[Adjustment]:
    """Oldest first: of a month, or all."""
    return [Adjustment(*row) for row in await conn.fetch(_LIST, organization_id, project_id, period)]
