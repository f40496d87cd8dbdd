"""Requests one by one, out of the ledger: their counts, times and cost, and nothing of their content.

A row of the ledger is an attempt, or one prompt of several; their sum is the request.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from gateway.db.pool import Connection

LOOK_BACK = datetime.timedelta(days=92)
"""The time back to which a request is found by its id alone."""


class RequestRow(msgspec.Struct, frozen=True):
    """A request, summed over its attempts and prompts.

    Model, adapter and times in ms are those of the first prompt's last attempt, whose completion has timed_tokens.
    """

    request_id: str
    project_id: str
    api_key_id: str
    endpoint: str
    model: str
    """The base model and the adapter, as `Route.model` has them: `<base>` or `<base>:<adapter>`."""
    adapter_id: str | None
    adapter_version: int | None
    stream: bool
    service_tier: str
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    discarded_tokens: int
    """Tokens that were computed after the end of the text, and are not billed."""
    queue_ms: float
    """The time in the engine's queue."""
    ttft_ms: float | None
    """The time to the first token; None where no token came."""
    latency_ms: float | None
    """The time to the end of the reply; None where the gateway died before it."""
    timed_tokens: int
    """The completion tokens of the first prompt's last attempt, over which its times are spread."""
    cost_nanos: int
    """The cost in billionths of the currency."""
    created_at: datetime.datetime
    finished_at: datetime.datetime
    trace_id: str | None
    """The trace of the request, where it has one."""


class RequestPlace(msgspec.Struct, frozen=True):
    """The place of a request in the ledger."""

    request_id: str
    project_id: str
    created_at: datetime.datetime


# Every prompt and attempt of a request has its instant.
_WHOLE = """
    SELECT w.request_id, w.project_id, k.api_key_id, k.endpoint, k.model, k.adapter_id, k.adapter_version, k.stream,
           k.service_tier, k.finish_reason, k.prompt_tokens, k.cached_tokens, k.completion_tokens, k.discarded_tokens,
           k.queue_ms, k.ttft_ms, k.latency_ms, k.timed_tokens, k.cost_nanos, w.created_at, k.finished_at,
           k.trace_id
    FROM unnest($2::text[], $3::text[], $4::timestamptz[]) WITH ORDINALITY
        AS w (request_id, project_id, created_at, place)
    CROSS JOIN LATERAL (
        SELECT (array_agg(r.api_key_id))[1] AS api_key_id, (array_agg(r.endpoint))[1] AS endpoint,
               (array_agg(r.model ORDER BY r.request_id, r.attempt DESC))[1] AS model,
               (array_agg(r.adapter_id ORDER BY r.request_id, r.attempt DESC))[1] AS adapter_id,
               (array_agg(r.adapter_version ORDER BY r.request_id, r.attempt DESC))[1] AS adapter_version,
               bool_or(r.stream) AS stream, (array_agg(r.service_tier))[1] AS service_tier,
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
               sum(r.cost_nanos)::bigint AS cost_nanos, max(r.finished_at) AS finished_at,
               max(r.trace_id) AS trace_id
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


async def whole_requests(conn: Connection, organization_id: str, places: Sequence[RequestPlace]) -> list[RequestRow]:
    """Return the requests at these places, in the order of the places."""
    if not places:
        return []
    ids, projects, instants = ([getattr(place, name) for place in places] for name in RequestPlace.__struct_fields__)
    rows = await conn.fetch(_WHOLE, organization_id, ids, projects, instants, min(instants), max(instants))
    return [RequestRow(**row) for row in rows]


_FIND = """
    SELECT created_at, project_id FROM ledger
    WHERE request_id = $2 AND organization_id = $1 AND kind = 'usage' AND created_at > now() - $3::interval
    ORDER BY created_at DESC LIMIT 1
"""


async def find_request(conn: Connection, organization_id: str, request_id: str) -> RequestRow | None:
    """Return a request of the last LOOK_BACK, by its own id or the id of one of its prompts.

    Return None where the organization had none.
    """
    request_id = request_id.partition(".")[0]
    found = await conn.fetchrow(_FIND, organization_id, request_id, LOOK_BACK)
    if found is None:
        return None
    place = RequestPlace(request_id, found["project_id"], found["created_at"])
    rows = await whole_requests(conn, organization_id, [place])
    return rows[0] if rows else None


class AttemptRow(msgspec.Struct, frozen=True):
    """One record of the ledger: an attempt at one prompt or, with a revision above 0, the difference to a better count.

    Prices are in nanos per million tokens; None where there were none.
    """

    request_id: str
    attempt: int
    revision: int
    """The number of the record, 0 for the first."""
    model: str
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    discarded_tokens: int
    """Tokens that were computed after the end of the text, and are not billed."""
    queue_ms: float
    prefill_ms: float
    decode_ms: float
    ttft_ms: float | None
    latency_ms: float | None
    adapter_digest: str | None
    adapter_load_bytes: int
    """Bytes of the adapter if the attempt had to load it, else 0."""
    adapter_class: str
    """The price class of the adapter."""
    price_version: int | None
    input_nanos: int | None
    cached_input_nanos: int | None
    output_nanos: int | None
    basis_points: int
    """The discount, in hundredths of a per cent."""
    input_cost_nanos: int
    cached_cost_nanos: int
    output_cost_nanos: int
    cost_nanos: int
    finished_at: datetime.datetime
    own_key: bool | None
    """True where the server was asked with the project's own key; such an attempt has no prices."""


_ATTEMPTS = """
    SELECT r.*, CASE WHEN r.price_version IS NOT NULL THEN p.input_nanos END AS input_nanos,
           CASE WHEN r.price_version IS NOT NULL THEN p.cached_input_nanos END AS cached_input_nanos,
           CASE WHEN r.price_version IS NOT NULL THEN p.output_nanos END AS output_nanos, p.basis_points
    FROM ledger r
        CROSS JOIN LATERAL price_of(r.organization_id, r.project_id, r.model, r.adapter_class, r.service_tier,
                                    r.created_at) p
    WHERE r.organization_id = $1 AND r.project_id = $2 AND r.created_at = $3
      AND split_part(r.request_id, '.', 1) = $4 AND r.kind = 'usage'
    ORDER BY r.request_id, r.attempt, r.revision
"""
_attempt_values = itemgetter(*AttemptRow.__struct_fields__)


async def list_attempts(conn: Connection, organization_id: str, row: RequestRow) -> list[AttemptRow]:
    """Return every record of the request, prompt by prompt."""
    values = (organization_id, row.project_id, row.created_at, row.request_id)
    return [AttemptRow(*_attempt_values(each)) for each in await conn.fetch(_ATTEMPTS, *values)]
