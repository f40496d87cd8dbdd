"""Requests one by one, newest first, out of the ledger: their counts, times and cost, and nothing of their content.

A query looks at a window of time, and within it at a bounded number of rows for each page and for a bounded time, along
an index: what is rarely found takes more pages, not more time. A row of the ledger is an attempt, or one prompt of
several; what they come to together is the request.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from gateway.db.pool import Connection

MAX_SCANNED = 20_000
"""Rows of the ledger that one page looks at for those that its filters let through."""

STEP, STEPS_S = 2_000, 0.04
"""So many at a time, and no more of them once that has taken so long: a project's rows lie far apart."""

FEW_PROJECTS = 5
"""Up to so many are looked through one by one, and more as a part of all."""

LOOK_BACK = datetime.timedelta(days=92)
"""How far back a request is found by its id alone."""


class RequestKey(msgspec.Struct, frozen=True):
    """Where a request stands in the order of all."""

    created_at: datetime.datetime
    request_id: str


class RequestQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Created from start up to end, and after `after` in the order of the list. project_ids None: the whole
    organization; other lists: empty ones do not filter. finish_reasons: as the attempt's first record has it."""

    organization_id: str
    start: datetime.datetime
    end: datetime.datetime
    after: RequestKey | None
    limit: int
    project_ids: Sequence[str] | None = None
    models: Sequence[str] = ()
    api_key_ids: Sequence[str] = ()
    adapter_ids: Sequence[str] = ()
    finish_reasons: Sequence[str] = ()
    max_scanned: int = MAX_SCANNED

    @property
    def is_filtered(self) -> bool:
        in_many = self.project_ids is not None and len(self.project_ids) > FEW_PROJECTS
        return in_many or any((self.models, self.api_key_ids, self.adapter_ids, self.finish_reasons))


class RequestRow(msgspec.Struct, frozen=True):
    """What its attempts and prompts come to. Times in ms, of the first prompt's last attempt."""

    request_id: str
    project_id: str
    api_key_id: str
    endpoint: str
    model: str
    adapter_id: str | None
    adapter_version: int | None
    stream: bool
    service_tier: str
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    discarded_tokens: int
    queue_ms: float
    ttft_ms: float | None
    latency_ms: float | None
    cost_nanos: int
    created_at: datetime.datetime
    finished_at: datetime.datetime


class RequestsFound(msgspec.Struct, frozen=True):
    """next_key: after which a next page begins, None where there is none."""

    rows: list[RequestRow]
    next_key: RequestKey | None


# A row is billed in the month in which it was created or, where that was closed, in a later one: by their index, each
# month's rows come in their order.
_OF_ORGANIZATION = """
    WITH seen AS MATERIALIZED (
        SELECT c.* FROM generate_series(month_of($2), month_of(now()), interval '1 month') AS m (period)
        CROSS JOIN LATERAL (
            SELECT l.request_id, l.created_at, l.project_id, l.api_key_id, l.model, l.adapter_id, l.finish_reason,
                   l.attempt = 0 AND counts_as_request(l.kind, l.revision, l.request_id) AS is_request
            FROM ledger l
            WHERE l.organization_id = $1 AND l.period = m.period::date AND l.created_at >= $2 AND l.created_at < $3
              AND l.created_at <= $4 AND (l.created_at, l.request_id) < ($4, $5)
            ORDER BY l.created_at DESC, l.request_id DESC LIMIT $6
        ) c
        ORDER BY c.created_at DESC, c.request_id DESC LIMIT $6
    ), found AS (
        SELECT s.created_at, s.request_id, s.project_id FROM seen s
        WHERE s.is_request
          AND ($8::text[] = '{}' OR s.model = ANY ($8)) AND ($9::text[] = '{}' OR s.api_key_id = ANY ($9))
          AND ($10::text[] = '{}' OR s.adapter_id = ANY ($10))
          AND ($11::text[] = '{}' OR s.finish_reason = ANY ($11))
          AND ($12::text[] IS NULL OR s.project_id = ANY ($12))
        ORDER BY s.created_at DESC, s.request_id DESC LIMIT $7
    )
    SELECT f.created_at, f.request_id, f.project_id, e.num_seen, e.last_at, e.last_id
    FROM (
        SELECT (SELECT count(*) FROM seen) AS num_seen, o.created_at AS last_at, o.request_id AS last_id
        FROM seen o ORDER BY o.created_at, o.request_id LIMIT 1
    ) e LEFT JOIN found f ON true
    ORDER BY f.created_at DESC, f.request_id DESC
"""
_OF_PROJECTS = """
    WITH seen AS MATERIALIZED (
        SELECT c.* FROM unnest($12::text[]) AS p (project_id)
        CROSS JOIN LATERAL (
            SELECT l.request_id, l.created_at, l.project_id, l.api_key_id, l.model, l.adapter_id, l.finish_reason,
                   l.attempt = 0 AND counts_as_request(l.kind, l.revision, l.request_id) AS is_request
            FROM ledger l
            WHERE l.project_id = p.project_id AND l.organization_id = $1 AND l.created_at >= $2 AND l.created_at < $3
              AND l.created_at <= $4 AND (l.created_at, l.request_id) < ($4, $5)
            ORDER BY l.created_at DESC, l.request_id DESC LIMIT $6
        ) c
        ORDER BY c.created_at DESC, c.request_id DESC LIMIT $6
    ), found AS (
        SELECT s.created_at, s.request_id, s.project_id FROM seen s
        WHERE s.is_request
          AND ($8::text[] = '{}' OR s.model = ANY ($8)) AND ($9::text[] = '{}' OR s.api_key_id = ANY ($9))
          AND ($10::text[] = '{}' OR s.adapter_id = ANY ($10))
          AND ($11::text[] = '{}' OR s.finish_reason = ANY ($11))
        ORDER BY s.created_at DESC, s.request_id DESC LIMIT $7
    )
    SELECT f.created_at, f.request_id, f.project_id, e.num_seen, e.last_at, e.last_id
    FROM (
        SELECT (SELECT count(*) FROM seen) AS num_seen, o.created_at AS last_at, o.request_id AS last_id
        FROM seen o ORDER BY o.created_at, o.request_id LIMIT 1
    ) e LEFT JOIN found f ON true
    ORDER BY f.created_at DESC, f.request_id DESC
"""

# Every prompt and attempt of a request has its instant.
_WHOLE = """
    SELECT w.request_id, w.project_id, k.api_key_id, k.endpoint, k.model, k.adapter_id, k.adapter_version, k.stream,
           k.service_tier, k.finish_reason, k.prompt_tokens, k.cached_tokens, k.completion_tokens, k.discarded_tokens,
           k.queue_ms, k.ttft_ms, k.latency_ms, k.cost_nanos, w.created_at, k.finished_at
    FROM unnest($2::text[], $3::text[], $4::timestamptz[]) WITH ORDINALITY
        AS w (request_id, project_id, created_at, place)
    CROSS JOIN LATERAL (
        SELECT (array_agg(r.api_key_id))[1] AS api_key_id, (array_agg(r.endpoint))[1] AS endpoint,
               (array_agg(r.model))[1] AS model, (array_agg(r.adapter_id))[1] AS adapter_id,
               (array_agg(r.adapter_version))[1] AS adapter_version, bool_or(r.stream) AS stream,
               (array_agg(r.service_tier))[1] AS service_tier,
               (array_agg(r.finish_reason ORDER BY r.request_id, r.attempt DESC, r.revision DESC))[1] AS finish_reason,
               sum(r.prompt_tokens)::bigint AS prompt_tokens, sum(r.cached_tokens)::bigint AS cached_tokens,
               sum(r.completion_tokens)::bigint AS completion_tokens,
               sum(r.discarded_tokens)::bigint AS discarded_tokens,
               sum(r.queue_ms) FILTER (WHERE r.request_id = w.request_id) AS queue_ms,
               (array_agg(r.ttft_ms ORDER BY r.attempt DESC)
                   FILTER (WHERE r.request_id = w.request_id AND r.revision = 0))[1] AS ttft_ms,
               (array_agg(r.latency_ms ORDER BY r.attempt DESC)
                   FILTER (WHERE r.request_id = w.request_id AND r.revision = 0))[1] AS latency_ms,
               sum(r.cost_nanos)::bigint AS cost_nanos, max(r.finished_at) AS finished_at
        FROM ledger r
        WHERE r.organization_id = $1 AND r.project_id = w.project_id AND r.created_at = w.created_at
          AND r.created_at BETWEEN $5 AND $6 AND split_part(r.request_id, '.', 1) = w.request_id AND r.kind = 'usage'
    ) k
    ORDER BY w.place
"""


async def list_requests(conn: Connection, query: RequestQuery) -> RequestsFound:
    """Newest first. Fewer rows than the limit with a next key: those that were looked at are behind it."""
    after = query.after or RequestKey(query.end, "")
    max_scanned = query.max_scanned if query.is_filtered else min(query.max_scanned, 4 * query.limit)
    in_few = query.project_ids is not None and len(query.project_ids) <= FEW_PROJECTS
    sql = _OF_PROJECTS if in_few else _OF_ORGANIZATION
    filters = [list(query.models), list(query.api_key_ids), list(query.adapter_ids), list(query.finish_reasons)]
    projects = None if query.project_ids is None else list(query.project_ids)
    keys: list[Any] = []
    next_key = None
    num_scanned, until_s = 0, time.monotonic() + STEPS_S
    while len(keys) <= query.limit:
        step = min(STEP, max_scanned - num_scanned)
        window = (query.organization_id, query.start, query.end, after.created_at, after.request_id, step)
        found = await conn.fetch(sql, *window, query.limit + 1 - len(keys), *filters, projects)
        keys += [row for row in found if row["request_id"] is not None]
        if not found or found[0]["num_seen"] < step:
            break
        num_scanned += step
        after = RequestKey(found[0]["last_at"], found[0]["last_id"])
        if num_scanned >= max_scanned or time.monotonic() > until_s:
            next_key = after
            break
    shown = keys[: query.limit]
    if len(keys) > query.limit:
        next_key = RequestKey(shown[-1]["created_at"], shown[-1]["request_id"])
    if not shown:
        return RequestsFound([], next_key)
    instants = [row["created_at"] for row in shown]
    ids, their_projects = [row["request_id"] for row in shown], [row["project_id"] for row in shown]
    rows = await conn.fetch(_WHOLE, query.organization_id, ids, their_projects, instants, min(instants), max(instants))
    return RequestsFound([RequestRow(**row) for row in rows], next_key)


_FIND = """
    SELECT created_at, project_id FROM ledger
    WHERE request_id = $2 AND organization_id = $1 AND kind = 'usage' AND created_at > now() - $3::interval
    ORDER BY created_at DESC LIMIT 1
"""


async def find_request(conn: Connection, organization_id: str, request_id: str) -> RequestRow | None:
    """One of the last LOOK_BACK; None where the organization had none of this id."""
    found = await conn.fetchrow(_FIND, organization_id, request_id, LOOK_BACK)
    if found is None:
        return None
    at, project_id = found["created_at"], found["project_id"]
    row = await conn.fetchrow(_WHOLE, organization_id, [request_id], [project_id], [at], at, at)
    return RequestRow(**row) if row else None


class AttemptRow(msgspec.Struct, frozen=True):
    """One record of the ledger: of an attempt at one prompt or, of a revision above 0, what a better count that came
    late has beyond it. Prices in nanos per million tokens, None where there were none."""

    request_id: str
    attempt: int
    revision: int
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    discarded_tokens: int
    queue_ms: float
    prefill_ms: float
    decode_ms: float
    ttft_ms: float | None
    latency_ms: float | None
    adapter_digest: str | None
    adapter_load_bytes: int
    adapter_class: str
    price_version: int | None
    input_nanos: int | None
    cached_input_nanos: int | None
    output_nanos: int | None
    basis_points: int
    input_cost_nanos: int
    cached_cost_nanos: int
    output_cost_nanos: int
    cost_nanos: int
    finished_at: datetime.datetime


_ATTEMPTS = """
    SELECT r.request_id, r.attempt, r.revision, r.finish_reason, r.prompt_tokens, r.cached_tokens, r.completion_tokens,
           r.discarded_tokens, r.queue_ms, r.prefill_ms, r.decode_ms, r.ttft_ms, r.latency_ms, r.adapter_digest,
           r.adapter_load_bytes, r.adapter_class, r.price_version,
           CASE WHEN r.price_version IS NOT NULL THEN p.input_nanos END AS input_nanos,
           CASE WHEN r.price_version IS NOT NULL THEN p.cached_input_nanos END AS cached_input_nanos,
           CASE WHEN r.price_version IS NOT NULL THEN p.output_nanos END AS output_nanos, p.basis_points,
           r.input_cost_nanos, r.cached_cost_nanos, r.output_cost_nanos, r.cost_nanos, r.finished_at
    FROM ledger r
        CROSS JOIN LATERAL price_of(r.organization_id, r.project_id, r.model, r.adapter_class, r.service_tier,
                                    r.created_at) p
    WHERE r.organization_id = $1 AND r.project_id = $2 AND r.created_at = $3
      AND split_part(r.request_id, '.', 1) = $4 AND r.kind = 'usage'
    ORDER BY r.request_id, r.attempt, r.revision
"""


async def list_attempts(conn: Connection, organization_id: str, row: RequestRow) -> list[AttemptRow]:
    """Every record of the request, prompt by prompt."""
    values = (organization_id, row.project_id, row.created_at, row.request_id)
    return [AttemptRow(**each) for each in await conn.fetch(_ATTEMPTS, *values)]
