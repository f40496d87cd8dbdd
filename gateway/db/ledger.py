"""A row of the ledger as it is stored: what exports and checks read. Nothing here writes.

The order of a period's rows is (created_at, request_id, attempt, revision): total, and that of an index.
"""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from gateway.db.pool import Connection

Kind = Literal["usage", "adjustment"]


class LedgerRow(msgspec.Struct, frozen=True):
    """kind "usage": an attempt (revision 0), or what a later and better count of it adds (revision 1 and on, whose
    numbers may be negative). kind "adjustment": an operator's, cost without tokens, with its reason.

    period: first day of the month in which the row is billed. corrects_period: that of its created_at, where that was
    closed before the row came. Costs in nanos of the currency of `price_version`, None without prices; list_cost_nanos
    is without the tenant's discount. cost_nanos is the sum of the three kinds' costs, but for adjustments.
    """

    request_id: str
    attempt: int
    revision: int
    kind: Kind
    organization_id: str
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
    created_at: datetime.datetime
    finished_at: datetime.datetime
    period: datetime.date
    corrects_period: datetime.date | None
    corrects_request_id: str | None
    reason: str | None
    price_version: int | None
    input_cost_nanos: int
    cached_cost_nanos: int
    output_cost_nanos: int
    cost_nanos: int
    list_cost_nanos: int


_OF_PERIOD = """
    SELECT request_id, attempt, revision, kind, organization_id, project_id, api_key_id, endpoint, model,
           adapter_id, adapter_version, adapter_digest, adapter_class, service_tier, stream,
           prompt_tokens, cached_tokens, completion_tokens, discarded_tokens, finish_reason,
           queue_ms, prefill_ms, decode_ms, ttft_ms, latency_ms, adapter_load_bytes, created_at, finished_at,
           period, corrects_period, corrects_request_id, reason, price_version,
           input_cost_nanos, cached_cost_nanos, output_cost_nanos, cost_nanos, list_cost_nanos
    FROM ledger WHERE organization_id = $1 AND period = $2
    ORDER BY created_at, request_id, attempt, revision
"""
PREFETCH = 1000


async def rows_of_period(conn: Connection, organization_id: str, period: datetime.date) -> AsyncIterator[LedgerRow]:
    """Every row of a month in the ledger's order, in bounded memory. In a transaction, whose snapshot it is."""
    async for row in conn.cursor(_OF_PERIOD, organization_id, period, prefetch=PREFETCH):
        yield LedgerRow(*row)
