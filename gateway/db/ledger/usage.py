"""The ledger of usage: each (request, attempt) once, priced as it is written, and only ever added to.

The fields of `UsageEvent` are columns of the table `ledger`, by name; no statement repeats them. A row that ended in
"error" may be the count that a gateway saw before it lost its engine: the difference to the engine's own count, should
that come, becomes a row beside it. `write_usage` in the schema does all of this in one transaction.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from gateway.db.pool import Connection

SUPERSEDED = "superseded"
"""The finish reason of an attempt whose place another one took; nobody pays for it."""

REFUSED = "refused"
"""The finish reason of an attempt that its engine or server refused: the request asks for what cannot be served."""


class UsageEvent(msgspec.Struct, frozen=True):
    """One attempt as a gateway reports it. Times are in ms."""

    request_id: str
    attempt: int
    """The number of the attempt, from 0."""
    organization_id: str
    project_id: str
    api_key_id: str
    endpoint: str
    """The path of the request, such as `/v1/chat/completions`."""
    model: str
    """The base model and the adapter, as `Route.model` has them: `<base>` or `<base>:<adapter>`."""
    adapter_id: str | None
    adapter_version: int | None
    adapter_digest: str | None
    """The digest of the adapter's content; None for a base model."""
    stream: bool
    """True if the reply is streamed."""
    prompt_tokens: int
    cached_tokens: int
    """The part of `prompt_tokens` that the engine found in its cache."""
    completion_tokens: int
    discarded_tokens: int
    """Tokens that were computed after the end of the text, and are not billed."""
    finish_reason: str
    queue_ms: float
    """The time that the prompt waited in the engine."""
    prefill_ms: float
    """The time from the start of the computation to the first token."""
    decode_ms: float
    """The time from the first token to the end."""
    ttft_ms: float | None
    """The time to the first token; None where no token came or the gateway died."""
    latency_ms: float | None
    """The time to the end, as the gateway saw it; None where the gateway died."""
    adapter_load_bytes: int
    """Bytes of the adapter if the attempt had to load it, else 0."""
    created_at: datetime.datetime
    """The instant of the attempt's meter tag, the same in every copy of it."""
    finished_at: datetime.datetime
    service_tier: str = "default"
    experiment_id: str | None = None
    """The experiment of the request, as in `MeterTag`, like the four fields below; None without one."""
    experiment_version: int | None = None
    experiment_arm: int | None = None
    experiment_epoch: int | None = None
    experiment_delivered: bool | None = None
    own_key: bool | None = None
    """True where the server was asked with the project's own key: nobody is charged for the tokens."""
    trace_id: str | None = None
    """The trace of the request, where it has one."""


# Sent as one JSON text: a quarter of the time that an array for each column takes to encode, and less on the server,
# too.
_WRITE = """
    SELECT new_request_id, new_attempt FROM write_usage(ARRAY(
        SELECT e FROM json_populate_recordset(NULL::ledger, $1::json) e))
"""


async def write_usage_events(conn: Connection, events: Sequence[UsageEvent]) -> set[tuple[str, int]]:
    """Write events, no (request_id, attempt) twice among them. Return the events that had no row yet.

    If two events are about one attempt, the ledger keeps the one that did not end in "error", with the larger counts:
    no client has seen more than its row says. An attempt that was superseded counts for nothing, in whatever order
    events come.
    """
    if not events:
        return set()
    rows = await conn.fetch(_WRITE, msgspec.json.encode(events).decode())
    return {(row["new_request_id"], row["new_attempt"]) for row in rows}


# The columns are those of the view usage_attempts, which would put together every attempt of the ledger before it
# filters.
_LIST = """
    SELECT (k.whole).*
    FROM (
        SELECT request_id, attempt, created_at FROM ledger
        WHERE project_id = $1 AND kind = 'usage' AND revision = 0
        ORDER BY created_at DESC, request_id, attempt LIMIT $2
    ) f CROSS JOIN LATERAL (
        SELECT whole_attempt(r ORDER BY r.revision) AS whole FROM ledger r
        WHERE r.request_id = f.request_id AND r.attempt = f.attempt AND r.created_at = f.created_at
    ) k
    ORDER BY f.created_at DESC, f.request_id, f.attempt
"""
_event_fields = itemgetter(*UsageEvent.__struct_fields__)


class BilledTokens(msgspec.Struct, frozen=True):
    """The tokens of one request that are in the ledger by now."""

    prompt: int
    cached: int
    completion: int


_BILLED = """
    SELECT sum((k.whole).prompt_tokens)::bigint AS prompt, sum((k.whole).cached_tokens)::bigint AS cached,
           sum((k.whole).completion_tokens)::bigint AS completion
    FROM ledger f CROSS JOIN LATERAL (
        SELECT whole_attempt(r ORDER BY r.revision) AS whole FROM ledger r
        WHERE r.request_id = f.request_id AND r.attempt = f.attempt AND r.created_at = f.created_at
    ) k
    WHERE f.request_id = ANY ($2) AND f.project_id = $1 AND f.kind = 'usage' AND f.revision = 0
      AND f.created_at > now() - interval '2 days' AND (k.whole).finish_reason <> $3
    HAVING count(*) > 0
"""


async def billed_tokens(conn: Connection, project_id: str, row_ids: Sequence[str]) -> BilledTokens | None:
    """Return the tokens of a request of the last two days; None where the ledger has no attempt that is billed.

    row_ids: the ids that the rows of the request may have.
    """
    row = await conn.fetchrow(_BILLED, project_id, list(row_ids), SUPERSEDED)
    return BilledTokens(**row) if row else None


async def list_usage_events(conn: Connection, project_id: str, limit: int) -> list[UsageEvent]:
    """Return the project's latest attempts, newest first, as their best counts have them."""
    return [UsageEvent(*_event_fields(row)) for row in await conn.fetch(_LIST, project_id, limit)]
