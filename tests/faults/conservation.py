"""Checks of what must hold after any fault: client-seen <= billed <= produced, each attempt billed once at its price,
every sum equal to the ledger's, no closed month changed, nothing reserved by anybody who is gone."""

from __future__ import annotations

import asyncio

import asyncpg
import msgspec

from gateway.domain.billing.book import SHADOW_TIER
from tests.faults.history import check_history
from tests.faults.site import Site
from tests.faults.watcher import PROMPT


class Row(msgspec.Struct, frozen=True):
    """The usage of one attempt by the ledger, corrections included."""

    request_id: str
    attempt: int
    project_id: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    discarded_tokens: int
    finish_reason: str
    cost_nanos: int
    service_tier: str


_ROWS = """
    SELECT request_id, attempt, project_id, prompt_tokens, cached_tokens, completion_tokens, discarded_tokens,
           finish_reason, cost_nanos, service_tier
    FROM usage_attempts WHERE project_id <> $1
"""
_SETTLED = """
    SELECT l.unit, coalesce(sum(a.settled), 0)::bigint AS settled
    FROM limits l LEFT JOIN limit_accounts a ON a.limit_id = l.id GROUP BY l.unit
"""


def ledger(site: Site) -> dict[str, Row]:
    """Return the ledger's rows by request id.

    Raises AssertionError: when an attempt has two rows.
    """
    rows = [Row(**row) for row in asyncio.run(_fetch(site, _ROWS, site.history.project_id))]
    assert len({(row.request_id, row.attempt) for row in rows}) == len(rows)
    return {row.request_id: row for row in rows}


def check_conservation(site: Site) -> dict[str, Row]:
    """Check everything that any client saw against the ledger, after `Site.settle`; return the ledger by request id."""
    rows, produced = ledger(site), site.produced()
    for row in rows.values():
        made = produced[row.request_id]
        assert row.completion_tokens + row.discarded_tokens <= made, (row, made)
        assert row.prompt_tokens in (0, len(PROMPT)), row
        assert row.prompt_tokens or not row.completion_tokens, row
        uncached = row.prompt_tokens - row.cached_tokens
        assert row.cost_nanos == 3 * uncached + row.cached_tokens + 7 * row.completion_tokens, "as FLAT prices have it"
    for client in site.seen:
        if client.request_id in site.lost | site.torn:
            continue
        if client.num_tokens:
            row = rows[client.request_id]
            assert client.num_tokens <= row.completion_tokens, (client, row)
        if client.usage is not None:
            assert client.usage["completion_tokens"] == rows[client.request_id].completion_tokens, client
    unbilled = produced.keys() - rows.keys() - site.lost
    assert not unbilled, f"an engine worked on {unbilled}, and nobody knows of it"
    _check_limits(site, rows)
    asyncio.run(check_history(site.postgres.dsn, site.history))
    return rows


def _check_limits(site: Site, rows: dict[str, Row]) -> None:
    """Check that the settled amounts of limits equal the ledger's, and that nothing is reserved. Copies count by cost
    alone.
    """
    settled = {row["unit"]: row["settled"] for row in asyncio.run(_fetch(site, _SETTLED))}
    own = [row for row in rows.values() if row.project_id == site.key.project_id]
    asked = [row for row in own if row.service_tier != SHADOW_TIER]
    tokens, cost = sum(row.prompt_tokens + row.completion_tokens for row in asked), sum(row.cost_nanos for row in own)
    assert settled == {"tokens": tokens, "requests": len(asked), "cost_nanos": cost}
    assert asyncio.run(_fetch(site, "SELECT * FROM limit_leases")) == []
    assert num_open(site) == len(site.lost)


def num_open(site: Site) -> int:
    """Return the number of requests that are open in journals and have no row in the ledger."""
    (row,) = asyncio.run(_fetch(site, "SELECT coalesce(sum(open_requests), 0)::bigint AS number FROM journals"))
    return int(row["number"])


def execute(site: Site, sql: str) -> None:
    asyncio.run(_fetch(site, sql))


async def _fetch(site: Site, sql: str, *values: object) -> list[asyncpg.Record]:
    conn = await asyncpg.connect(site.postgres.dsn)
    try:
        return await conn.fetch(sql, *values)
    finally:
        await conn.close()
