"""A month of usage to export: two tenants, prices that change, a discount, hostile names, a closed month before it
with late rows, a correction by the operator, and credits."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import msgspec

from gateway.db.billing.credits import grant_credit
from gateway.db.billing.periods import close_period
from gateway.db.organization.organizations import ensure_organization
from gateway.db.organization.projects import create_project
from gateway.db.pool import Database

if TYPE_CHECKING:
    from gateway.db.pool import Connection

MONTH = "2025-10"
BEFORE = "2025-09"
FORMULA = '=HYPERLINK("http://evil.example","x")'


class Books(msgspec.Struct, frozen=True):
    """An organization with a month of usage to export."""

    database: Database
    organization_id: str
    acme: str
    globex: str


_PRICES = """
    INSERT INTO price_versions (id, organization_id, version, currency, effective_at) VALUES
        ('pv_1', $1, 1, 'usd', '2025-08-01T00:00:00Z'), ('pv_2', $1, 2, 'usd', '2025-10-16T00:00:00Z')
"""
_PRICE_ENTRIES = """
    INSERT INTO prices (organization_id, version, model, adapter_class, service_tier,
                        input_nanos, cached_input_nanos, output_nanos) VALUES
        ($1, 1, '*', '*', '*', 150000000, 75000000, 600000000),
        ($1, 1, '*', 'none', '*', 100000001, 50000003, 400000007),
        ($1, 2, '*', '*', '*', 160000000, 0, 650000000)
"""
_DISCOUNT = "INSERT INTO price_discounts (organization_id, version, project_id, basis_points) VALUES ($1, 2, $2, 1250)"

# Deterministic numbers: row n has the same in every database.
_USAGE = """
    SELECT write_usage(array_agg(jsonb_populate_record(NULL::ledger, jsonb_build_object(
        'request_id', $4::text || lpad(n::text, 6, '0'), 'attempt', n % 2, 'organization_id', $1::text,
        'project_id', CASE WHEN n % 3 = 0 THEN $3::text ELSE $2::text END,
        'api_key_id', 'key_' || n % 4, 'endpoint', '/v1/chat/completions',
        'model', CASE n % 5 WHEN 0 THEN 'base' WHEN 1 THEN 'base:pirate' ELSE 'base:poet' END,
        'adapter_id', CASE n % 5 WHEN 0 THEN NULL WHEN 1 THEN 'adpt_pirate' ELSE 'adpt_poet' END,
        'adapter_version', CASE n % 5 WHEN 0 THEN NULL ELSE 1 + n % 2 END,
        'adapter_digest', CASE n % 5 WHEN 0 THEN NULL ELSE repeat('a', 64) END,
        'stream', n % 2 = 0, 'prompt_tokens', 10 + n * 7919 % 4000, 'cached_tokens', n * 31 % 10,
        'completion_tokens', n * 104729 % 900, 'discarded_tokens', n % 3,
        'finish_reason', CASE WHEN n % 50 = 7 THEN 'error' ELSE 'stop' END,
        'queue_ms', n * 0.1, 'prefill_ms', n / 7.0, 'decode_ms', n * 1.5,
        'ttft_ms', CASE WHEN n % 4 = 0 THEN NULL ELSE n * 0.25 END, 'latency_ms', n * 2.0,
        'adapter_load_bytes', n % 2 * 1000000, 'service_tier', CASE WHEN n % 11 = 0 THEN 'flex' ELSE 'default' END,
        'created_at', $5::timestamptz + n * ($6::timestamptz - $5) / $7,
        'finished_at', $5::timestamptz + n * ($6::timestamptz - $5) / $7 + interval '1.5 seconds')
    ))) FROM generate_series(0, $7 - 1) n
"""

# One corrects the month before, in the tenant's favor; one is of the month itself.
_ADJUSTMENTS = """
    INSERT INTO ledger (
        request_id, attempt, revision, kind, organization_id, project_id, api_key_id, endpoint, model, adapter_class,
        service_tier, stream, prompt_tokens, cached_tokens, completion_tokens, discarded_tokens, finish_reason,
        queue_ms, prefill_ms, decode_ms, adapter_load_bytes, created_at, finished_at,
        period, corrects_period, corrects_request_id, reason, price_version,
        input_cost_nanos, cached_cost_nanos, output_cost_nanos, cost_nanos, list_cost_nanos)
    SELECT id, 0, 0, 'adjustment', $1, $2, '', '', '', 'none', 'default', false, 0, 0, 0, 0, '', 0, 0, 0, 0,
           '2025-10-20T12:00:00Z', '2025-10-20T12:00:00Z', '2025-10-01', corrects, corrected, reason, 2,
           0, 0, 0, cost, cost
    FROM (VALUES ('adj_a', '2025-09-01'::date, 'req_september_000001', '-billed twice', -12345678),
                 ('adj_b', NULL, NULL, 'support', 250000001)) v (id, corrects, corrected, reason, cost)
"""


async def make_books(database: Database, num_rows: int = 1000) -> Books:
    """Write a closed September with half of `num_rows` rows, then an October with `num_rows` and some late rows;
    return the books."""
    async with database.transaction() as conn:
        organization_id = (await ensure_organization(conn, "default")).id
        projects = [await create_project(conn, organization_id, name) for name in (FORMULA, 'globex, Inc. "East"')]
        assert projects[0] is not None and projects[1] is not None
        books = Books(database, organization_id, projects[0].id, projects[1].id)
        await conn.execute(_PRICES, organization_id)
        await conn.execute(_PRICE_ENTRIES, organization_id)
        await conn.execute(_DISCOUNT, organization_id, books.globex)
        for amount in (1_000_000, 5_000_000_000):
            await grant_credit(conn, organization_id, books.acme, amount, reason="@welcome", expires_at=None)
        await write_usage(conn, books, "req_september_", time(9, 1), time(10, 1), num_rows // 2)
        await close_month(conn, books, datetime.date(2025, 9, 1))
        await write_usage(conn, books, "req_october_", time(10, 1), time(11, 1), num_rows)
        await write_usage(conn, books, "req_late_", time(9, 28), time(10, 1), 20)
        await conn.execute(_ADJUSTMENTS, organization_id, books.acme)
    return books


async def write_usage(
    conn: Connection, books: Books, prefix: str, start: datetime.datetime, end: datetime.datetime, num_rows: int
) -> None:
    """Write rows spread evenly over [start, end)."""
    await conn.execute(_USAGE, books.organization_id, books.acme, books.globex, prefix, start, end, num_rows)


async def close_month(conn: Connection, books: Books, month: datetime.date) -> None:
    await close_period(conn, books.organization_id, month)


def time(month: int, day: int) -> datetime.datetime:
    return datetime.datetime(2025, month, day, tzinfo=datetime.UTC)
