"""The ledger of usage events: append only, each (request, attempt) once."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class UsageEvent(msgspec.Struct, frozen=True):
    """One row of the ledger. Times in ms; ttft_ms is None when no token came or its gateway died."""

    request_id: str
    attempt: int
    organization_id: str
    project_id: str
    api_key_id: str
    endpoint: str
    model: str
    adapter_id: str | None
    adapter_version: int | None
    adapter_digest: str | None
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


_INSERT = """
    INSERT INTO usage_events (
        request_id, attempt, organization_id, project_id, api_key_id, endpoint, model,
        adapter_id, adapter_version, adapter_digest, stream,
        prompt_tokens, cached_tokens, completion_tokens, discarded_tokens, finish_reason,
        queue_ms, prefill_ms, decode_ms, ttft_ms, latency_ms, adapter_load_bytes, created_at, finished_at)
    SELECT * FROM unnest(
        $1::text[], $2::integer[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
        $8::text[], $9::integer[], $10::text[], $11::boolean[],
        $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[], $16::text[],
        $17::float8[], $18::float8[], $19::float8[], $20::float8[], $21::float8[], $22::bigint[],
        $23::timestamptz[], $24::timestamptz[])
    ON CONFLICT (request_id, attempt) DO NOTHING
    RETURNING 1
"""


async def insert_usage_events(conn: Connection, events: Sequence[UsageEvent]) -> int:
    """Append events in one statement; returns how many were new."""
    if not events:
        return 0
    columns = [[getattr(event, field) for event in events] for field in UsageEvent.__struct_fields__]
    return len(await conn.fetch(_INSERT, *columns))


_LIST = """
    SELECT request_id, attempt, organization_id, project_id, api_key_id, endpoint, model,
           adapter_id, adapter_version, adapter_digest, stream,
           prompt_tokens, cached_tokens, completion_tokens, discarded_tokens, finish_reason,
           queue_ms, prefill_ms, decode_ms, ttft_ms, latency_ms, adapter_load_bytes, created_at, finished_at
    FROM usage_events WHERE project_id = $1
    ORDER BY created_at DESC, request_id, attempt LIMIT $2
"""


async def list_usage_events(conn: Connection, project_id: str, limit: int) -> list[UsageEvent]:
    """The project's latest events, newest first."""
    return [UsageEvent(**row) for row in await conn.fetch(_LIST, project_id, limit)]
