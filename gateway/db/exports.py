"""What exports read of the ledger: its rows, its charges and its sums, of one period in one snapshot, in total orders.

Text is ordered by its bytes (COLLATE "C"), so that the order is the same in every database. Rows come through a cursor
of the server, a batch at a time.
"""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import asyncpg

    from gateway.db.pool import Connection

ROWS_PER_BATCH = 250
"""Few, since a gateway that exports serves requests in between."""


class Scope(msgspec.Struct, frozen=True):
    """Whose rows, and which: those billed in `month`, given by its first day, and, unless these are None, created in
    [start, end). What came late was created before the month it is billed in."""

    organization_id: str
    project_id: str | None
    month: datetime.date
    start: datetime.datetime | None
    end: datetime.datetime | None
    currency: str


class LedgerRow(msgspec.Struct, frozen=True):
    """One row of the ledger. Times in ms, money in nanos of the currency, months as 2026-10.

    kind: usage or adjustment. revision above 0: the difference to a better count that came later, so its numbers may be
    negative. corrects_period: the month of created_at, where that was closed before the row came.
    """

    created_at: datetime.datetime
    request_id: str
    attempt: int
    revision: int
    kind: str
    period: str
    corrects_period: str | None
    corrects_request_id: str | None
    reason: str | None
    project_id: str
    api_key_id: str
    endpoint: str
    model: str
    adapter_id: str | None
    adapter_version: int | None
    adapter_digest: str | None
    adapter_class: str
    service_tier: str
    stream: bool
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    discarded_tokens: int
    finish_reason: str
    queue_ms: float
    prefill_ms: float
    decode_ms: float
    ttft_ms: float | None
    latency_ms: float | None
    adapter_load_bytes: int
    finished_at: datetime.datetime
    currency: str
    price_version: int | None
    input_cost_nanos: int
    cached_cost_nanos: int
    output_cost_nanos: int
    cost_nanos: int
    list_cost_nanos: int


LEDGER_ORDER = ("created_at", "request_id", "attempt", "revision")

_LEDGER_ROWS = """
    SELECT l.created_at, l.request_id, l.attempt, l.revision, l.kind, to_char(l.period, 'YYYY-MM'),
           to_char(l.corrects_period, 'YYYY-MM'), l.corrects_request_id, l.reason, l.project_id, l.api_key_id,
           l.endpoint, l.model, l.adapter_id, l.adapter_version, l.adapter_digest, l.adapter_class, l.service_tier,
           l.stream, l.prompt_tokens, l.cached_tokens, l.completion_tokens, l.discarded_tokens, l.finish_reason,
           l.queue_ms, l.prefill_ms, l.decode_ms, l.ttft_ms, l.latency_ms, l.adapter_load_bytes, l.finished_at,
           $6::text, l.price_version, l.input_cost_nanos, l.cached_cost_nanos, l.output_cost_nanos, l.cost_nanos,
           l.list_cost_nanos
    FROM ledger l
    WHERE l.organization_id = $1 AND l.period = $3
        AND ($4::timestamptz IS NULL OR l.created_at >= $4) AND ($5::timestamptz IS NULL OR l.created_at < $5)
        AND ($2::text IS NULL OR l.project_id = $2)
    ORDER BY l.created_at, l.request_id COLLATE "C", l.attempt, l.revision
"""


async def ledger_rows(conn: Connection, scope: Scope) -> AsyncIterator[list[LedgerRow]]:
    """Batches in LEDGER_ORDER. Within a transaction."""
    cursor = await conn.cursor(_LEDGER_ROWS, *msgspec.structs.astuple(scope))
    while records := await cursor.fetch(ROWS_PER_BATCH):
        yield [LedgerRow(*record) for record in records]


class ChargeRow(msgspec.Struct, frozen=True):
    """What one kind of tokens cost on one day, per project, key, model, adapter and price.

    line_item: input (uncached), cached_input or output, in tokens; adjustment and credit have no tokens, and stand by
    themselves. list_price_nanos: per million tokens, before the discount. date: of the usage; for charges of a whole
    month its first day. corrects_period: a closed month that this came too late for, or that an adjustment is about.
    reference: the request that an adjustment corrects, the grant that a credit was taken from.
    """

    date: datetime.date
    project_id: str
    api_key_id: str | None
    model: str
    adapter_id: str | None
    adapter_class: str
    service_tier: str
    line_item: str
    corrects_period: str | None
    reference: str | None
    reason: str | None
    num_tokens: int | None
    price_version: int | None
    list_price_nanos: int | None
    discount_basis_points: int | None
    currency: str
    cost_nanos: int


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
               sum(completion_tokens)::bigint AS output, sum(input_cost_nanos)::bigint AS input_cost,
               sum(cached_cost_nanos)::bigint AS cached_cost, sum(output_cost_nanos)::bigint AS output_cost,
               sum(cost_nanos)::bigint AS cost
        FROM ledger
        WHERE organization_id = $1 AND period = $3
            AND ($4::timestamptz IS NULL OR created_at >= $4) AND ($5::timestamptz IS NULL OR created_at < $5)
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
    """Batches in CHARGE_ORDER, adjustments that are equal in it by their ids. Within a transaction.

    by_day: also by day, key and adapter; otherwise over the month, without them.
    """
    cursor = await conn.cursor(_CHARGES, *msgspec.structs.astuple(scope), by_day)
    while records := await cursor.fetch(ROWS_PER_BATCH):
        yield [ChargeRow(*record) for record in records]


class LedgerSums(msgspec.Struct, frozen=True):
    """What the ledger holds; input_tokens are without the cached."""

    num_rows: int
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    cost_nanos: int


_LEDGER_SUMS = """
    SELECT count(*) AS num_rows,
           coalesce(sum(prompt_tokens - cached_tokens), 0)::bigint AS input_tokens,
           coalesce(sum(cached_tokens), 0)::bigint AS cached_input_tokens,
           coalesce(sum(completion_tokens), 0)::bigint AS output_tokens,
           coalesce(sum(cost_nanos), 0)::bigint AS cost_nanos
    FROM ledger
    WHERE organization_id = $1 AND period = $3
        AND ($4::timestamptz IS NULL OR created_at >= $4) AND ($5::timestamptz IS NULL OR created_at < $5)
        AND ($2::text IS NULL OR project_id = $2)
"""


async def ledger_sums(conn: Connection, scope: Scope) -> LedgerSums:
    row = await conn.fetchrow(_LEDGER_SUMS, *msgspec.structs.astuple(scope)[:-1])
    assert row is not None
    return LedgerSums(**row)


_CREDITS = """
    SELECT d.period AS date, g.project_id, g.id AS reference, g.reason, -d.amount_nanos AS cost_nanos
    FROM credit_draws d JOIN credit_grants g ON g.id = d.grant_id
    WHERE g.organization_id = $1 AND d.period = $3 AND ($2::text IS NULL OR g.project_id = $2)
    ORDER BY g.project_id COLLATE "C", g.id COLLATE "C"
"""


async def credits_drawn(
    conn: Connection, organization_id: str, project_id: str | None, month: datetime.date, currency: str
) -> list[ChargeRow]:
    """What credits paid of a closed month, each as a charge below zero; none before it is closed."""
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


class Setting(msgspec.Struct, frozen=True):
    """The rest of what an export says. now: of the snapshot. currency: of all the organization's amounts; something
    stands there as well before prices were set, while everything costs nothing."""

    is_closed: bool
    now: datetime.datetime
    installation_id: str
    organization_name: str
    currency: str


_SETTING = """
    SELECT $2 < open_from(o.id) AS is_closed, now() AS now, (SELECT id FROM installation) AS installation_id,
           coalesce((SELECT n.name FROM period_names n WHERE n.organization_id = o.id AND n.period = $2
                     AND n.object_id = o.id), o.name) AS organization_name,
           coalesce((SELECT n.name FROM period_names n WHERE n.organization_id = o.id AND n.period = $2
                     AND n.object_id = 'currency'),
                    (SELECT v.currency FROM price_versions v WHERE v.organization_id = o.id LIMIT 1), 'usd') AS currency
    FROM organizations o WHERE o.id = $1
"""


async def read_setting(conn: Connection, organization_id: str, month: datetime.date) -> Setting:
    row = await conn.fetchrow(_SETTING, organization_id, month)
    assert row is not None
    return Setting(**row)


# As they were when the month was closed; afterwards a name may change, the month's files may not.
_PROJECT_NAMES = """
    SELECT p.id, coalesce(n.name, p.archived_name, p.name) AS name
    FROM projects p LEFT JOIN period_names n
        ON n.organization_id = p.organization_id AND n.period = $2 AND n.object_id = p.id
    WHERE p.organization_id = $1
"""
_ADAPTER_NAMES = """
    SELECT a.id, a.name FROM adapters a JOIN projects p ON p.id = a.project_id WHERE p.organization_id = $1
"""


async def project_names(conn: Connection, organization_id: str, month: datetime.date) -> dict[str, str]:
    return _names(await conn.fetch(_PROJECT_NAMES, organization_id, month))


async def adapter_names(conn: Connection, organization_id: str) -> dict[str, str]:
    """An adapter's name never changes, and outlives it."""
    return _names(await conn.fetch(_ADAPTER_NAMES, organization_id))


def _names(rows: list[asyncpg.Record]) -> dict[str, str]:
    return {row["id"]: row["name"] for row in rows}
