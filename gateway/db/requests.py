"""Requests one by one, newest first, out of the ledger: their counts, times and cost, and nothing of their content.

A query looks at a window of time, and within it at a bounded number of rows for each page, along an index: what is
rarely found takes more pages, not more time. A row of the ledger is an attempt, or one prompt of several; what they
come to together is the request.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from gateway.db.request_spans import MAX_LOOKED_AT, OF_EACH_KEY, Filters, Spans, spans_with

if TYPE_CHECKING:
    from gateway.db.pool import Connection

LOOK_BACK = datetime.timedelta(days=92)
"""How far back a request is found by its id alone."""


class RequestKey(msgspec.Struct, frozen=True):
    """Where a request stands in the order of all."""

    created_at: datetime.datetime
    request_id: str


class RequestQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Created from start up to end, and after `after` in the order of the list. project_ids None: the whole
    organization; other lists: empty ones do not filter. finish_reasons: as the attempt's first record has it.

    With project_ids no row of another project is looked at: neither a page's end nor its length tells of one."""

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

    @property
    def is_filtered(self) -> bool:
        return any((self.models, self.api_key_ids, self.adapter_ids, self.finish_reasons))


class RequestRow(msgspec.Struct, frozen=True):
    """What its attempts and prompts come to. Times in ms, of the first prompt's last attempt, which had timed_tokens
    come out of it."""

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
    timed_tokens: int
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
        SELECT c.*
        FROM unnest($2::timestamptz[], $3::timestamptz[]) AS s (since, until)
            CROSS JOIN LATERAL generate_series(month_of(s.since), month_of(now()), interval '1 month') AS m (period)
            CROSS JOIN LATERAL (
                SELECT l.request_id, l.created_at, l.project_id, l.api_key_id, l.model, l.adapter_id, l.finish_reason,
                       l.attempt = 0 AND counts_as_request(l.kind, l.revision, l.request_id) AS is_request
                FROM ledger l
                WHERE l.organization_id = $1 AND l.period = m.period::date AND l.created_at >= s.since
                  AND l.created_at < s.until AND l.created_at <= $4 AND (l.created_at, l.request_id) < ($4, $5)
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
    SELECT f.created_at, f.request_id, f.project_id, e.is_cut, e.last_at, e.last_id
    FROM (
        SELECT (SELECT count(*) FROM seen) = $6 AS is_cut, o.created_at AS last_at, o.request_id AS last_id
        FROM seen o ORDER BY o.created_at, o.request_id LIMIT 1
    ) e LEFT JOIN found f ON true
    ORDER BY f.created_at DESC, f.request_id DESC
"""
# What is older than the last row looked at of some project may have newer ones beside it: it is for a next page.
_OF_PROJECTS = """
    WITH looked_at AS MATERIALIZED (
        SELECT c.*, row_number() OVER (PARTITION BY c.project_id ORDER BY c.created_at DESC, c.request_id DESC) AS place
        FROM unnest($12::text[]) AS p (id)
        CROSS JOIN LATERAL (
            SELECT d.*
            FROM unnest($2::timestamptz[], $3::timestamptz[]) AS s (since, until)
                CROSS JOIN LATERAL (
                    SELECT l.request_id, l.created_at, l.project_id, l.api_key_id, l.model, l.adapter_id,
                           l.finish_reason,
                           l.attempt = 0 AND counts_as_request(l.kind, l.revision, l.request_id) AS is_request
                    FROM ledger l
                    WHERE l.project_id = p.id AND l.organization_id = $1 AND l.created_at >= s.since
                      AND l.created_at < s.until AND l.created_at <= $4 AND (l.created_at, l.request_id) < ($4, $5)
                    ORDER BY l.created_at DESC, l.request_id DESC LIMIT $6
                ) d
            ORDER BY d.created_at DESC, d.request_id DESC LIMIT $6
        ) c
    ), border AS (
        SELECT created_at, request_id FROM looked_at WHERE place = $6
        ORDER BY created_at DESC, request_id DESC LIMIT 1
    ), seen AS MATERIALIZED (
        SELECT a.* FROM looked_at a LEFT JOIN border b ON true
        WHERE b.request_id IS NULL OR (a.created_at, a.request_id) >= (b.created_at, b.request_id)
    ), found AS (
        SELECT s.created_at, s.request_id, s.project_id FROM seen s
        WHERE s.is_request
          AND ($8::text[] = '{}' OR s.model = ANY ($8)) AND ($9::text[] = '{}' OR s.api_key_id = ANY ($9))
          AND ($10::text[] = '{}' OR s.adapter_id = ANY ($10))
          AND ($11::text[] = '{}' OR s.finish_reason = ANY ($11))
        ORDER BY s.created_at DESC, s.request_id DESC LIMIT $7
    )
    SELECT f.created_at, f.request_id, f.project_id, e.is_cut, e.last_at, e.last_id
    FROM (
        SELECT EXISTS (SELECT FROM border) AS is_cut, o.created_at AS last_at, o.request_id AS last_id
        FROM seen o ORDER BY o.created_at, o.request_id LIMIT 1
    ) e LEFT JOIN found f ON true
    ORDER BY f.created_at DESC, f.request_id DESC
"""

# Every prompt and attempt of a request has its instant.
_WHOLE = """
    SELECT w.request_id, w.project_id, k.api_key_id, k.endpoint, k.model, k.adapter_id, k.adapter_version, k.stream,
           k.service_tier, k.finish_reason, k.prompt_tokens, k.cached_tokens, k.completion_tokens, k.discarded_tokens,
           k.queue_ms, k.ttft_ms, k.latency_ms, k.timed_tokens, k.cost_nanos, w.created_at, k.finished_at
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
               coalesce(sum(r.completion_tokens) FILTER (
                   WHERE r.request_id = w.request_id AND r.attempt = r.last_attempt), 0)::bigint AS timed_tokens,
               sum(r.cost_nanos)::bigint AS cost_nanos, max(r.finished_at) AS finished_at
        FROM (
            SELECT l.*, max(l.attempt) OVER (PARTITION BY l.request_id) AS last_attempt
            FROM ledger l
            WHERE l.organization_id = $1 AND l.project_id = w.project_id AND l.created_at = w.created_at
              AND l.created_at BETWEEN $5 AND $6 AND split_part(l.request_id, '.', 1) = w.request_id
              AND l.kind = 'usage'
        ) r
    ) k
    ORDER BY w.place
"""


async def list_requests(conn: Connection, query: RequestQuery, *, scan_limit: int | None = None) -> RequestsFound:
    """Newest first. Fewer rows than the limit with a next key: those that were looked at are behind it. scan_limit:
    rows of the ledger to look at, of each project where they are named."""
    after = query.after or RequestKey(query.end, "")
    found_in = Spans([(query.start, query.end)], None)
    if query.is_filtered:
        query = await _with_projects_of_keys(conn, query)
        found_in = await _spans(conn, query, after)
        scan_limit = scan_limit or MAX_LOOKED_AT
    since, until = [span[0] for span in found_in.spans], [span[1] for span in found_in.spans]
    values: list[object] = [query.organization_id, since, until, after.created_at, after.request_id]
    values += [scan_limit or 4 * query.limit, query.limit + 1, list(query.models), list(query.api_key_ids)]
    values += [list(query.adapter_ids), list(query.finish_reasons)]
    if query.project_ids is None:
        found = await conn.fetch(_OF_ORGANIZATION, *values)
    else:
        found = await conn.fetch(_OF_PROJECTS, *values, list(query.project_ids))
    keys = [row for row in found if row["request_id"] is not None]
    shown = keys[: query.limit]
    next_key = None
    if len(keys) > query.limit:
        next_key = RequestKey(shown[-1]["created_at"], shown[-1]["request_id"])
    elif found and found[0]["is_cut"]:
        next_key = RequestKey(found[0]["last_at"], found[0]["last_id"])
    elif found_in.back_to is not None:
        next_key = RequestKey(found_in.back_to, "")
    if not shown:
        return RequestsFound([], next_key)
    instants = [row["created_at"] for row in shown]
    ids, projects = [row["request_id"] for row in shown], [row["project_id"] for row in shown]
    rows = await conn.fetch(_WHOLE, query.organization_id, ids, projects, instants, min(instants), max(instants))
    return RequestsFound([RequestRow(**row) for row in rows], next_key)


async def _spans(conn: Connection, query: RequestQuery, after: RequestKey) -> Spans:
    filters = Filters(
        organization_id=query.organization_id,
        project_ids=query.project_ids,
        models=query.models,
        adapter_ids=query.adapter_ids,
        finish_reasons=query.finish_reasons,
    )
    # Others of the very instant come before `after` where it has an id; no key is before one without.
    until = min(query.end, after.created_at + datetime.timedelta(microseconds=1 if after.request_id else 0))
    num_needed = (query.limit + 1) * (OF_EACH_KEY if query.api_key_ids else 1)
    return await spans_with(conn, filters, query.start, until, num_needed)


_PROJECTS_OF_KEYS = "SELECT id, project_id FROM api_keys WHERE organization_id = $1 AND id = ANY ($2::text[])"


async def _with_projects_of_keys(conn: Connection, query: RequestQuery) -> RequestQuery:
    """Only the projects whose keys are asked for, where all of them are known."""
    if not query.api_key_ids:
        return query
    rows = await conn.fetch(_PROJECTS_OF_KEYS, query.organization_id, list(query.api_key_ids))
    projects: dict[str, str | None] = {row["id"]: row["project_id"] for row in rows}
    if projects.keys() != set(query.api_key_ids):
        return query
    wanted = [
        each for each in dict.fromkeys(projects.values()) if query.project_ids is None or each in query.project_ids
    ]
    return msgspec.structs.replace(query, project_ids=wanted)


_FIND = """
    SELECT created_at, project_id FROM ledger
    WHERE request_id = $2 AND organization_id = $1 AND kind = 'usage' AND created_at > now() - $3::interval
    ORDER BY created_at DESC LIMIT 1
"""


async def find_request(conn: Connection, organization_id: str, request_id: str) -> RequestRow | None:
    """One of the last LOOK_BACK, by its own id or one of its prompts'; None where the organization had none."""
    request_id = request_id.partition(".")[0]
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
