"""The ledger's charges: sums per price and kind of tokens, which costs, invoices and FOCUS are made of.

Each kind's cost is the sum of what the ledger stored for it, so that nothing is rounded a second time.
"""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.db.billing.exports import ROWS_PER_BATCH, Scope
from gateway.db.ledger.rollups import span_of_period

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class ChargeRow(msgspec.Struct, frozen=True):
    """The cost of one kind of tokens on one day, per project, key, model, adapter and price."""

    date: datetime.date
    """The day of the usage; for charges of a whole month its first day."""
    project_id: str
    api_key_id: str | None
    model: str
    adapter_id: str | None
    adapter_class: str
    """The price class of the adapter."""
    service_tier: str
    line_item: str
    """input (uncached), cached_input or output, in tokens. adjustment and credit have no tokens."""
    corrects_period: str | None
    """The closed month that the charge came too late for, or that an adjustment corrects."""
    reference: str | None
    """The request that an adjustment corrects, or the grant from which a credit was taken."""
    reason: str | None
    """The reason of an adjustment or a credit, in words."""
    num_tokens: int | None
    """The number of tokens; None for adjustments and credits."""
    price_version: int | None
    list_price_nanos: int | None
    """The price of a million tokens before the discount."""
    discount_basis_points: int | None
    """The discount, in hundredths of a per cent."""
    currency: str
    cost_nanos: int
    """The cost in billionths of the currency, after the discount."""


CHARGE_ORDER = (
    "date",
    "project_id",
    "api_key_id",
    "model",
    "adapter_id",
    "adapter_class",
    "service_tier",
    "price_version",
    "corrects_period",
    "line_item",
)

# $7: by day, key and adapter; otherwise over the month, as invoices have it.
_CHARGES = """
    WITH sums AS (
        SELECT CASE WHEN $7 THEN (created_at AT TIME ZONE 'UTC')::date ELSE $3 END AS day,
               project_id, CASE WHEN $7 THEN api_key_id END AS key_id, model,
               CASE WHEN $7 THEN adapter_id END AS adapter, adapter_class, service_tier, price_version,
               corrects_period, kind,
               CASE WHEN kind = 'adjustment' THEN request_id END AS adjustment_id, corrects_request_id, reason,
               sum(prompt_tokens - cached_tokens)::bigint AS input, sum(cached_tokens)::bigint AS cached,
               sum(completion_tokens)::bigint AS output, sum(input_cost_nanos) AS input_cost,
               sum(cached_cost_nanos) AS cached_cost, sum(output_cost_nanos) AS output_cost, sum(cost_nanos) AS cost
        FROM ledger
        WHERE organization_id = $1 AND period = $3
            AND created_at >= $4 AND created_at < $5
            AND ($2::text IS NULL OR project_id = $2)
        GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13
    )
    SELECT s.day, s.project_id, s.key_id, s.model, s.adapter, s.adapter_class, s.service_tier, item.name,
           to_char(s.corrects_period, 'YYYY-MM'), s.corrects_request_id, s.reason, item.num_tokens, s.price_version,
           item.price, CASE WHEN s.kind = 'usage' THEN p.basis_points END, $6::text, item.cost
    FROM sums s
        LEFT JOIN price_versions v ON v.organization_id = $1 AND v.version = s.price_version
        LEFT JOIN LATERAL price_of($1, s.project_id, s.model, s.adapter_class, s.service_tier, v.effective_at) p
            ON s.kind = 'usage'
        CROSS JOIN LATERAL (VALUES
            (1, 'input', s.input, coalesce(p.input_nanos, 0), s.input_cost),
            (2, 'cached_input', s.cached, coalesce(p.cached_input_nanos, 0), s.cached_cost),
            (3, 'output', s.output, coalesce(p.output_nanos, 0), s.output_cost),
            (4, 'adjustment', NULL, NULL, s.cost)
        ) item (number, name, num_tokens, price, cost)
    WHERE (item.name = 'adjustment') = (s.kind = 'adjustment')
        AND (s.kind = 'adjustment' OR item.num_tokens <> 0 OR item.cost <> 0)
    ORDER BY s.day, s.project_id COLLATE "C", s.key_id COLLATE "C" NULLS FIRST, s.model COLLATE "C",
        s.adapter COLLATE "C" NULLS FIRST, s.adapter_class COLLATE "C", s.service_tier COLLATE "C",
        s.price_version NULLS FIRST, s.corrects_period NULLS FIRST, item.number,
        s.adjustment_id COLLATE "C" NULLS FIRST
"""


async def charges(conn: Connection, scope: Scope, *, by_day: bool) -> AsyncIterator[list[ChargeRow]]:
    """Yield batches of charges in CHARGE_ORDER, and adjustments of equal order by their ids. Needs a transaction.

    by_day: sum by day, key and adapter as well; otherwise over the month, without them.
    """
    start, end = await span_of_period(conn, scope.organization_id, scope.month)
    within = msgspec.structs.replace(scope, start=max(start, scope.start or start), end=min(end, scope.end or end))
    cursor = await conn.cursor(_CHARGES, *msgspec.structs.astuple(within), by_day)
    while records := await cursor.fetch(ROWS_PER_BATCH):
        yield [ChargeRow(*record) for record in records]


_CREDITS = """
    SELECT d.period AS date, g.project_id, g.id AS reference, g.reason, -d.amount_nanos AS cost_nanos
    FROM credit_draws d JOIN credit_grants g ON g.id = d.grant_id
    WHERE g.organization_id = $1 AND d.period = $3 AND ($2::text IS NULL OR g.project_id = $2)
    ORDER BY g.project_id COLLATE "C", g.id COLLATE "C"
"""


async def credits_drawn(
    conn: Connection, organization_id: str, project_id: str | None, month: datetime.date, currency: str
) -> list[ChargeRow]:
    """Return the part of a closed month that credits paid, each as a charge below zero; [] for an open month.

    project_id: None: all projects of the organization.
    """
    rows = await conn.fetch(_CREDITS, organization_id, project_id, month)
    return [ChargeRow(**_NO_USAGE, **row, currency=currency) for row in rows]


_NO_USAGE: dict[str, Any] = {
    "api_key_id": None,
    "model": "",
    "adapter_id": None,
    "adapter_class": "none",
    "service_tier": "default",
    "line_item": "credit",
    "corrects_period": None,
    "num_tokens": None,
    "price_version": None,
    "list_price_nanos": None,
    "discount_basis_points": None,
}
