"""Events that wait to be added to units and sums: rows of the ledger, refusals and votes. Each is taken once.

Only one transaction at a time takes events and changes units and sums: the one that has the lock. The transaction that
deletes an event adds it.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from gateway.domain.experiments.segment_values import Values

if TYPE_CHECKING:
    from gateway.db.pool import Connection

LOCK_KEY = 0x6578706572  # "exper"
"""The key of the advisory lock of units and sums."""
_TRY_LOCK = "SELECT pg_try_advisory_xact_lock($1)"
_LOCK = "SELECT pg_advisory_xact_lock($1)"

UnitId = tuple[str, bytes]
"""The id of an experiment and the digest of a unit."""


class Request(msgspec.Struct, frozen=True):
    """A request that an experiment counts: a row of `experiment_requests`."""

    request_id: str
    at_us: int
    """The time at which the request was admitted or refused, in microseconds of Unix time."""
    epoch: int
    """The epoch that chose the arm; 0 where the request is not analysed."""
    arm: int
    """The index of the arm."""
    is_delivered: bool
    """True if the request got the arm's whole treatment."""
    num_refused: int
    """The number of refused requests of the unit, within a second, that this row stands for; 0: the request ran."""
    segments: Values = ()
    """The segments of the request; empty where they are not known."""


class UsageRow(msgspec.Struct, frozen=True):
    """The columns of a row of the ledger that experiments read.

    A row of a later revision holds differences; only its times to the first and last token are whole values.
    """

    attempt: int
    revision: int
    """The number of the record of the attempt, from 0."""
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    cost_nanos: int
    queue_ms: float
    prefill_ms: float
    decode_ms: float
    ttft_ms: float | None
    latency_ms: float | None


class QueuedEvent(msgspec.Struct, frozen=True):
    """An event that was taken from the queue of events that wait to be counted, with the facts about its request."""

    kind: Literal["usage", "refusal", "feedback"]
    experiment_id: str
    feedback_id: str | None
    digest: bytes | None
    """The digest of the request's unit; None for a vote, and for a request of a unit that was forgotten."""
    request: Request | None
    """The request; None where it is not known, and for a vote about a unit."""
    usage: UsageRow | None
    """The ledger's row; None but for usage."""


async def try_lock(conn: Connection) -> bool:
    """Take the lock of units and sums until the transaction ends; False where another transaction has it."""
    has_lock: bool = await conn.fetchval(_TRY_LOCK, LOCK_KEY)
    return has_lock


async def lock_sums(conn: Connection) -> None:
    """Wait for the lock of units and sums, which is held until the transaction ends."""
    await conn.execute(_LOCK, LOCK_KEY)


_TAKE = """
    WITH taken AS (
        DELETE FROM experiment_events WHERE id IN (SELECT id FROM experiment_events ORDER BY id LIMIT $1) RETURNING *
    )
    SELECT t.kind, t.experiment_id, t.feedback_id, r.digest, r.request_id,
           (extract(epoch FROM r.created_at) * 1000000)::bigint AS at_us, r.epoch, r.arm, r.is_delivered, r.num_refused,
           CASE WHEN r.gateway IS NULL THEN '{}' ELSE
               ARRAY[r.api_key_id, r.endpoint, r.stream::text, r.service_tier, r.gateway] END AS segments,
           t.attempt, t.revision, t.finish_reason, t.prompt_tokens, t.completion_tokens, t.cost_nanos, t.queue_ms,
           t.prefill_ms, t.decode_ms, t.ttft_ms, t.latency_ms
    FROM taken t LEFT JOIN experiment_requests r ON r.request_id = t.request_id AND r.experiment_id = t.experiment_id
    ORDER BY t.id
"""


async def take_events(conn: Connection, most: int) -> list[QueuedEvent]:
    """Take the oldest events off the queue and return them, oldest first, in a transaction that has the lock."""
    return [_queued_event(row) for row in await conn.fetch(_TAKE, most)]


_DROP_OLDEST = (
    "DELETE FROM experiment_events WHERE id = (SELECT min(id) FROM experiment_events) RETURNING experiment_id"
)


async def drop_oldest(conn: Connection) -> str | None:
    """Delete the oldest event, which cannot be counted, and return its experiment's id.

    Runs in a transaction that has the lock.
    """
    experiment_id: str | None = await conn.fetchval(_DROP_OLDEST)
    return experiment_id


def _queued_event(row: Any) -> QueuedEvent:
    kind, experiment_id, feedback_id, digest, *rest = row
    request = Request(*[*rest[:6], tuple(rest[6])]) if digest is not None else None
    usage = UsageRow(*rest[7:]) if kind == "usage" else None
    return QueuedEvent(kind, experiment_id, feedback_id, digest, request, usage)


class WaitingEvents(msgspec.Struct, frozen=True):
    """The events that are not in the sums yet."""

    num: int
    lag_s: float
    """The age of the oldest waiting event in seconds; 0 where none waits."""


MAX_COUNTED = 1_000_000

_WAITING = """
    SELECT (SELECT count(*) FROM (SELECT FROM experiment_events LIMIT $1) e) AS num,
           coalesce((SELECT extract(epoch FROM clock_timestamp() - queued_at)::float8 FROM experiment_events
                     ORDER BY id LIMIT 1), 0) AS lag_s
"""


async def count_waiting(conn: Connection) -> WaitingEvents:
    """Return the number of events that wait, counted up to `MAX_COUNTED`, and the age of the oldest one."""
    row = await conn.fetchrow(_WAITING, MAX_COUNTED)
    assert row is not None
    return WaitingEvents(row["num"], max(0.0, row["lag_s"]))


_BEHIND = """
    SELECT greatest(
        0,
        (SELECT extract(epoch FROM clock_timestamp() - queued_at) FROM experiment_events ORDER BY id LIMIT 1),
        (SELECT extract(epoch FROM clock_timestamp() - closes_at - $1::interval) FROM experiment_units
         WHERE NOT is_closed AND closes_at IS NOT NULL ORDER BY closes_at LIMIT 1))::float8
"""


async def counting_lag_s(conn: Connection, grace: datetime.timedelta) -> float:
    """Return the seconds for which the oldest event has waited, or the oldest outcome window has been due to be closed.

    grace: the time after its end at which a window is due to be closed.
    """
    seconds: float = await conn.fetchval(_BEHIND, grace)
    return seconds


_DROP_REQUESTS = """
    DELETE FROM experiment_requests WHERE request_id IN (
        SELECT r.request_id FROM experiments e CROSS JOIN LATERAL (
            SELECT request_id FROM experiment_requests
            WHERE experiment_id = e.id AND created_at < now() - $1::interval - make_interval(
                secs => coalesce((e.definition #>> '{analysis,outcome_window_seconds}')::integer, $2))
            LIMIT $3
        ) r
        LIMIT $3)
"""

REQUEST_RETENTION = datetime.timedelta(days=90)
"""The time after the end of a unit's outcome window for which its requests are known."""

MAX_DROPPED = 10_000


async def drop_old_requests(conn: Connection, default_window_s: int) -> None:
    """Delete requests of units whose outcome windows ended long ago, some at a time."""
    await conn.execute(_DROP_REQUESTS, REQUEST_RETENTION, default_window_s, MAX_DROPPED)
