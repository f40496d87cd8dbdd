"""Reads past traffic and feedback of a project as units, before an experiment starts.

The ledger knows no units. The caller chooses what counts as one: the units of the project's experiments, if it had any,
or each API key, or each request. Feedback is about units, or about requests of experiments.
"""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Literal

import msgspec

from gateway.db.experiments.events import UsageRow
from gateway.db.pool import replan

if TYPE_CHECKING:
    from gateway.db.pool import Connection

MAX_ROWS = 50_000
"""The most rows of the ledger that are read; the newest ones are read."""

SLICE_ROWS = 500

Past = Literal["unit", "api_key", "request"]


class PastRow(msgspec.Struct, frozen=True):
    """A row of the ledger, with the unit of its request."""

    unit: bytes
    """The digest of the request's unit."""
    request_id: str
    at: datetime.datetime
    """The time of the request's admission."""
    usage: UsageRow


_BY_LEDGER = """
    SELECT CASE WHEN $4 THEN l.api_key_id ELSE split_part(l.request_id, '.', 1) END::bytea AS unit, l.request_id,
           l.created_at, l.attempt, l.revision, l.finish_reason, l.prompt_tokens, l.completion_tokens, l.cost_nanos,
           l.queue_ms, l.prefill_ms, l.decode_ms, l.ttft_ms, l.latency_ms
    FROM ledger l
    WHERE l.project_id = $1 AND l.created_at >= $2 AND l.kind = 'usage'
    ORDER BY l.created_at DESC LIMIT $3
"""
_BY_UNIT = """
    SELECT q.digest AS unit, l.request_id, l.created_at, l.attempt, l.revision, l.finish_reason, l.prompt_tokens,
           l.completion_tokens, l.cost_nanos, l.queue_ms, l.prefill_ms, l.decode_ms, l.ttft_ms, l.latency_ms
    FROM ledger l JOIN experiment_requests q ON q.request_id = l.request_id AND q.project_id = l.project_id
    WHERE l.project_id = $1 AND l.created_at >= $2 AND l.kind = 'usage' AND l.experiment_epoch > 0
    ORDER BY l.created_at DESC LIMIT $3
"""
# Read by the newest request of each experiment, which an index has: else all requests of all projects might be read.
_HAS_UNITS = """
    SELECT EXISTS (SELECT FROM experiments e CROSS JOIN LATERAL (
        SELECT created_at FROM experiment_requests WHERE experiment_id = e.id ORDER BY created_at DESC LIMIT 1) r
    WHERE e.project_id = $1 AND r.created_at >= $2)
"""


async def has_units(conn: Connection, project_id: str, since: datetime.datetime) -> bool:
    """Tell whether an experiment of the project knew units since an instant."""
    return bool(await conn.fetchval(_HAS_UNITS, project_id, since))


async def load_past(
    conn: Connection, project_id: str, since: datetime.datetime, past: Past
) -> AsyncIterator[list[PastRow]]:
    """Yield rows of the project's usage since an instant, the newest first, in the caller's transaction.

    Rows come SLICE_ROWS at a time, so that the event loop makes no more of them in one step.
    """
    await replan(conn)
    if past == "unit":
        cursor = await conn.cursor(_BY_UNIT, project_id, since, MAX_ROWS)
    else:
        cursor = await conn.cursor(_BY_LEDGER, project_id, since, MAX_ROWS, past == "api_key")
    while rows := await cursor.fetch(SLICE_ROWS):
        yield [PastRow(row[0], row[1], row[2], UsageRow(*tuple(row)[3:])) for row in rows]


MAX_VOTES = 50_000
"""The most votes that are read; the newest ones are read."""


class PastVotes(msgspec.Struct, frozen=True):
    """The votes of one unit by one metric."""

    at: datetime.datetime
    """The time of the first of the votes."""
    total: int
    """The sum of the votes, in the metric's integers."""
    num: int
    """The number of votes."""


# A vote is received after it was cast, so that only those received since then are read.
_VOTES = """
    SELECT min(occurred_at), sum(value)::bigint, count(*) FROM (
        SELECT CASE WHEN $5 THEN coalesce(f.digest, r.digest) ELSE convert_to(f.request_id, 'UTF8') END AS unit,
               f.occurred_at, f.value
        FROM feedback f
            LEFT JOIN experiment_requests r ON r.request_id = f.request_id AND r.project_id = f.project_id
        WHERE f.project_id = $1 AND f.metric = $2 AND f.received_at >= $3 AND f.occurred_at >= $3
          AND f.withdrawn_at IS NULL AND f.source <> 'judge'
        ORDER BY f.received_at DESC LIMIT $4
    ) v
    WHERE unit IS NOT NULL GROUP BY unit ORDER BY 1
"""


async def load_past_votes(
    conn: Connection, project_id: str, metric: str, since: datetime.datetime, *, by_unit: bool
) -> AsyncIterator[list[PastVotes]]:
    """Yield the votes of each unit, or of each request, by a feedback metric since an instant, by their first votes.

    They come SLICE_ROWS at a time, in the caller's transaction.

    by_unit: False: by request, without votes that are about a unit rather than a request.
    """
    cursor = await conn.cursor(_VOTES, project_id, metric, since, MAX_VOTES, by_unit)
    while rows := await cursor.fetch(SLICE_ROWS):
        yield [PastVotes(*row) for row in rows]
