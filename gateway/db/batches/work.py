"""Batches as gateways work on them: one gateway at a time, by a lease and a fencing number.

Every change is made under the number that its gateway got with the lease. A gateway that lost the lease, and does not
know it yet, changes nothing any more.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import msgspec

from gateway.domain.batches.line import BatchWait

if TYPE_CHECKING:
    from gateway.db.pool import Connection

LEASE_SECONDS = 8
"""Seconds after which a batch goes to another gateway, unless its own renews the lease."""

CHECKED, RUN, ENDED = ("validating",), ("in_progress",), ("finalizing", "cancelling")
"""The statuses of batches whose file is to be checked, whose lines are to run, and whose files are to be written."""

PACE_SECONDS = 60.0
"""The seconds over which the pace of a batch is measured."""


_OPEN_LINES = msgspec.json.Decoder(dict[str, int])


class LeasedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that this gateway works on."""

    project_id: str
    id: str
    api_key_id: str
    endpoint: str
    input_file_id: str
    output_file_id: str
    error_file_id: str
    keep_seconds: int | None
    """The seconds for which output and error files are kept; None: until they are deleted."""
    status: str
    ending: str | None
    """The state that the batch gets once its files are written; None while lines may run."""
    expires_at: datetime.datetime
    left_seconds: float
    """Seconds until the batch expires."""
    num_total: int
    num_completed: int
    num_failed: int
    open_lines: dict[str, int]
    """The number of lines without a result, by the pool that they name; "" for lines that name none."""
    fence: int
    """The number of this lease among the leases of the batch; a gateway with an earlier number may not write any more.
    """


class NewLine(msgspec.Struct, frozen=True, array_like=True):
    """A line of an input file that has passed the check."""

    number: int
    """The number of the line in the file, from 1; blank lines count."""
    first_byte: int
    """The place of the line's first byte in the file."""
    num_bytes: int
    model: str


class LineRow(msgspec.Struct, frozen=True):
    """A line that is to run."""

    number: int
    first_byte: int
    num_bytes: int
    model: str
    attempt: int
    num_faults: int
    """The number of attempts that failed by a fault of this installation."""
    begun_at: datetime.datetime


class ReturnedLine(msgspec.Struct, frozen=True):
    """A claimed line that begins anew."""

    number: int
    attempt: int
    was_sent: bool = False
    """True if an engine may have worked on the attempt, so that the next one has another number."""
    is_fault: bool = False
    """True if the attempt failed by a fault of this installation."""


class LineResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one attempt at a line."""

    number: int
    attempt: int
    is_completed: bool
    """True if the request succeeded."""
    reason: str
    """The code of the error of a line that failed; "" for one that did not."""
    content_key: str
    """The id of the key that encrypts the sealed fields."""
    sealed_result: bytes
    input_tokens: int
    cached_tokens: int
    output_tokens: int


class StoredResult(msgspec.Struct, frozen=True):
    """A batch line's state, and its sealed result if it has one; other lines may have begun."""

    number: int
    first_byte: int
    num_bytes: int
    state: str
    attempt: int
    begun_at: datetime.datetime | None
    content_key: str | None
    """The id of the key that encrypts the sealed fields; None where they are empty."""
    sealed_result: bytes | None


# Of the batches that nobody works on, those come first whose projects have the fewest that are worked on.
_LEASE = """
    WITH at_work AS (
        SELECT project_id, count(*) AS number FROM batches
        WHERE ended_at IS NULL AND leased_until >= now() AND status = ANY ($4)
        GROUP BY project_id),
    ranked AS (
        SELECT b.project_id, b.id, coalesce(w.number, 0)
               + row_number() OVER (PARTITION BY b.project_id ORDER BY b.leased_until, b.expires_at) AS place
        FROM batches b LEFT JOIN at_work w ON w.project_id = b.project_id
        WHERE b.ended_at IS NULL AND b.leased_until < now() AND b.status = ANY ($4)),
    due AS (
        SELECT b.project_id, b.id FROM batches b JOIN ranked r ON r.project_id = b.project_id AND r.id = b.id
        WHERE b.ended_at IS NULL AND b.leased_until < now() AND b.status = ANY ($4)
        ORDER BY r.place, b.leased_until, b.expires_at LIMIT $2 FOR UPDATE OF b SKIP LOCKED),
    taken AS (
        UPDATE batches b SET gateway = $1, leased_until = now() + $3 * interval '1 second', fence = b.fence + 1
        FROM due WHERE b.project_id = due.project_id AND b.id = due.id
        RETURNING b.*)
    SELECT project_id, id, api_key_id, endpoint, input_file_id, output_file_id, error_file_id, keep_seconds, status,
           ending, expires_at, extract(epoch FROM expires_at - now())::float8 AS left_seconds, num_total, num_completed,
           num_failed, open_lines, fence
    FROM taken
"""


async def lease_batches(conn: Connection, gateway: str, limit: int, statuses: Sequence[str]) -> list[LeasedBatch]:
    """Take batches of these statuses that nobody works on, and return them.

    Before a batch's lines run, call `begin_anew` for lines that another gateway had begun.
    """
    found = await conn.fetch(_LEASE, gateway, limit, LEASE_SECONDS, list(statuses))
    return [LeasedBatch(**{**row, "open_lines": _OPEN_LINES.decode(row["open_lines"])}) for row in found]


_ANEW = """
    UPDATE batch_lines SET state = 'waiting' WHERE project_id = $1 AND batch_id = $2 AND state = 'running'
"""
# While a fleet is upgraded, gateways of before work on batches whose open lines they do not count.
_RECOUNT = """
    UPDATE batches b SET open_lines = (
        SELECT coalesce(jsonb_object_agg(name, number), '{}') FROM (
            SELECT coalesce(p.name, '') AS name, count(*) AS number
            FROM batch_lines l LEFT JOIN pools p ON p.name = split_part(l.model, ':', 1) AND p.removed_at IS NULL
            WHERE l.project_id = $1 AND l.batch_id = $2 AND l.state IN ('waiting', 'running') GROUP BY 1) by_pool)
    WHERE project_id = $1 AND id = $2
          AND num_total - num_completed - num_failed
              <> (SELECT coalesce(sum(value::bigint), 0) FROM jsonb_each_text(open_lines))
    RETURNING open_lines
"""


async def begin_anew(conn: Connection, batch: LeasedBatch) -> LeasedBatch:
    """Mark as waiting again those lines of a locked batch that a gateway had begun before it lost the lease.

    Return the batch with its open lines, counted anew where they do not agree with the batch's other counts.
    """
    await conn.execute(_ANEW, batch.project_id, batch.id)
    recounted = await conn.fetchval(_RECOUNT, batch.project_id, batch.id)
    if recounted is None:
        return batch
    return msgspec.structs.replace(batch, open_lines=_OPEN_LINES.decode(recounted))


_STANDING = """
    SELECT project_id, count(*) FILTER (WHERE leased_until >= now()) AS num_at_work,
           count(*) FILTER (WHERE leased_until < now()) AS num_due
    FROM batches WHERE ended_at IS NULL AND status = 'in_progress' GROUP BY project_id
"""


class ProjectBatches(msgspec.Struct, frozen=True):
    """The batches of a project whose lines run: those that gateways work on, and those that wait for one."""

    num_at_work: int
    num_due: int


async def count_project_batches(conn: Connection) -> dict[str, ProjectBatches]:
    """Return the numbers of batches whose lines run, by project, without projects that have none."""
    return {row[0]: ProjectBatches(row[1], row[2]) for row in await conn.fetch(_STANDING)}


_QUEUED = """
    SELECT extract(epoch FROM b.expires_at - now())::float8, b.open_lines,
           greatest(1, (SELECT count(DISTINCT gateway) FROM batches WHERE ended_at IS NULL AND leased_until >= now())),
           (b.input_tokens + 2 * b.output_tokens)::float8 / nullif(b.num_completed, 0)
    FROM batches b WHERE b.ended_at IS NULL AND b.status = 'in_progress' AND b.leased_until < now()
"""


class QueuedBatch(msgspec.Struct, frozen=True):
    """A batch whose lines no gateway runs."""

    left_seconds: float
    """Seconds until the batch expires."""
    num_left: dict[str, float]
    """The part of the open lines that one gateway may expect, by the pool that lines name; "" for lines that name none.
    """
    work_per_line: float | None
    """The mean work of a line in tokens, a completion's counted twice; None where no line has ended."""


async def queued_batches(conn: Connection) -> list[QueuedBatch]:
    """Return the batches whose lines wait for a gateway, each with the part of its lines that one may expect."""
    return [
        QueuedBatch(left_seconds, {name: each / num_gateways for name, each in _OPEN_LINES.decode(lines).items()}, work)
        for left_seconds, lines, num_gateways, work in await conn.fetch(_QUEUED)
    ]


_RENEW = """
    UPDATE batches b SET leased_until = now() + $5 * interval '1 second'
    FROM unnest($1::text[], $2::text[], $3::bigint[], $4::boolean[]) AS mine (project_id, id, fence, ends)
    WHERE b.project_id = mine.project_id AND b.id = mine.id AND b.fence = mine.fence
          AND b.ended_at IS NULL AND b.leased_until > now() AND (b.status <> 'cancelling' OR mine.ends)
    RETURNING b.project_id, b.id
"""


async def renew_leases(conn: Connection, batches: Sequence[LeasedBatch]) -> set[tuple[str, str]]:
    """Renew the leases of batches. Return projects and ids of the batches that this gateway still has.

    Batches that are not returned are lost, or were cancelled while their lines run.
    """
    columns = [[getattr(batch, name) for batch in batches] for name in ("project_id", "id", "fence")]
    ends = [batch.status == "cancelling" for batch in batches]
    return {(row["project_id"], row["id"]) for row in await conn.fetch(_RENEW, *columns, ends, LEASE_SECONDS)}


_RELEASE = """
    UPDATE batches SET leased_until = least(leased_until, now() + $4 * interval '1 second'),
                       waits_code = $5, waits_message = $6
    WHERE project_id = $1 AND id = $2 AND fence = $3
"""


async def release_batch(
    conn: Connection, batch: LeasedBatch, *, after_seconds: float = 0, waits_for: BatchWait | None = None
) -> None:
    """Let any gateway take a batch, after_seconds from now. waits_for: why its lines cannot run now; None: they can."""
    why = (None, None) if waits_for is None else (waits_for.code, waits_for.message)
    await conn.execute(_RELEASE, batch.project_id, batch.id, batch.fence, after_seconds, *why)


_LOCK = """
    SELECT status FROM batches WHERE project_id = $1 AND id = $2 AND fence = $3 AND ended_at IS NULL FOR UPDATE
"""


async def lock_batch(conn: Connection, batch: LeasedBatch) -> str | None:
    """Lock a batch until the transaction ends, and return its status; None where another gateway has the batch."""
    status: str | None = await conn.fetchval(_LOCK, batch.project_id, batch.id, batch.fence)
    return status


# validation

_DROP_LINES = "DELETE FROM batch_lines WHERE project_id = $1 AND batch_id = $2"
_ADD_LINES = """
    INSERT INTO batch_lines (project_id, batch_id, number, first_byte, num_bytes, model)
    SELECT $1, $2, l.number, l.first_byte, l.num_bytes, l.model
    FROM unnest($3::integer[], $4::bigint[], $5::integer[], $6::text[]) AS l (number, first_byte, num_bytes, model)
"""
_WRITE_SOON = "SET LOCAL synchronous_commit = off"
_BEGIN = """
    UPDATE batches SET status = 'in_progress', in_progress_at = now(), num_total = $3, open_lines = (
        SELECT coalesce(jsonb_object_agg(name, number), '{}') FROM (
            SELECT coalesce(p.name, '') AS name, count(*) AS number
            FROM batch_lines l LEFT JOIN pools p ON p.name = split_part(l.model, ':', 1) AND p.removed_at IS NULL
            WHERE l.project_id = $1 AND l.batch_id = $2 GROUP BY 1) by_pool)
    WHERE project_id = $1 AND id = $2
          AND $3 = (SELECT count(*) FROM batch_lines WHERE project_id = $1 AND batch_id = $2)
    RETURNING true
"""
_FAIL = """
    UPDATE batches SET status = 'failed', ended_at = now(), in_progress_at = NULL, num_total = 0,
                       content_key = $3, sealed_metadata = $4, sealed_errors = $5
    WHERE project_id = $1 AND id = $2
"""


async def drop_lines(conn: Connection, batch: LeasedBatch) -> None:
    """Delete the lines of a batch."""
    await conn.execute(_DROP_LINES, batch.project_id, batch.id)


async def add_lines(conn: Connection, batch: LeasedBatch, lines: Sequence[NewLine]) -> None:
    """Add lines to a batch that the caller's transaction has locked.

    The transaction does not wait for the disk: a database that dies may lose the lines, though never earlier ones
    without the later ones. `begin_batch` waits for the disk and counts them.
    """
    await conn.execute(_WRITE_SOON)
    columns = [[getattr(line, name) for line in lines] for name in NewLine.__struct_fields__]
    await conn.execute(_ADD_LINES, batch.project_id, batch.id, *columns)


async def begin_batch(conn: Connection, batch: LeasedBatch, num_total: int) -> bool:
    """Set a locked batch running. Return False, and change nothing, where the database lost some of its lines.

    num_total: the number of its lines.
    """
    return bool(await conn.fetchval(_BEGIN, batch.project_id, batch.id, num_total))


async def fail_batch(
    conn: Connection, batch: LeasedBatch, content_key: str, sealed_metadata: bytes, sealed_errors: bytes
) -> None:
    """End a locked batch whose input file is wrong."""
    await conn.execute(_FAIL, batch.project_id, batch.id, content_key, sealed_metadata, sealed_errors)


_METADATA = "SELECT content_key, sealed_metadata FROM batches WHERE project_id = $1 AND id = $2"


async def metadata_of(conn: Connection, batch: LeasedBatch) -> tuple[str, bytes]:
    """Return the encrypted metadata of a locked batch, after the id of the content key that encrypts it."""
    row = await conn.fetchrow(_METADATA, batch.project_id, batch.id)
    assert row is not None, "it is locked"
    return row["content_key"], row["sealed_metadata"]


# lines

CLAIM_WINDOW = 1024
"""The number of waiting lines, from the first one on, among which a claim chooses."""

# Base models take turns, and lines of one adapter follow each other: the fewer adapters run at once, the faster.
_CLAIM = """
    WITH first AS (
        SELECT number, model FROM batch_lines
        WHERE project_id = $1 AND batch_id = $2 AND state = 'waiting' AND split_part(model, ':', 1) <> ALL ($5)
        ORDER BY number LIMIT $4),
    due AS (
        SELECT number, row_number() OVER (PARTITION BY split_part(model, ':', 1) ORDER BY model, number) AS turn
        FROM first ORDER BY turn, number LIMIT $3)
    UPDATE batch_lines l SET state = 'running', attempt = l.attempt + 1, begun_at = coalesce(l.begun_at, now())
    FROM due
    WHERE l.project_id = $1 AND l.batch_id = $2 AND l.number = due.number
    RETURNING l.number, l.first_byte, l.num_bytes, l.model, l.attempt, l.num_faults, l.begun_at
"""


async def claim_lines(
    conn: Connection, batch: LeasedBatch, limit: int, *, but_for: Collection[str] = ()
) -> list[LineRow]:
    """Begin lines of a batch that the caller's transaction has locked; lines of one adapter follow each other.

    but_for: base models whose lines stay unclaimed.
    """
    found = await conn.fetch(_CLAIM, batch.project_id, batch.id, limit, CLAIM_WINDOW, list(but_for))
    return sorted((LineRow(**row) for row in found), key=lambda line: (line.model, line.number))


_UNBEGIN = """
    UPDATE batch_lines l SET state = 'waiting', attempt = l.attempt - CASE WHEN g.was_sent THEN 0 ELSE 1 END,
                             num_faults = l.num_faults + CASE WHEN g.is_fault THEN 1 ELSE 0 END
    FROM unnest($3::integer[], $4::integer[], $5::boolean[], $6::boolean[]) AS g (number, attempt, was_sent, is_fault)
    WHERE l.project_id = $1 AND l.batch_id = $2 AND l.number = g.number AND l.attempt = g.attempt
      AND l.state = 'running'
"""


async def give_lines_back(conn: Connection, batch: LeasedBatch, lines: Sequence[ReturnedLine]) -> None:
    """Mark claimed lines as waiting again, so that another attempt begins."""
    columns = ([getattr(line, name) for line in lines] for name in ReturnedLine.__struct_fields__)
    await conn.execute(_UNBEGIN, batch.project_id, batch.id, *columns)


# The pace is that of the last minute: results of before count for less and less.
_STORE = """
    WITH stored AS (
        UPDATE batch_lines l SET state = CASE WHEN r.is_completed THEN 'completed' ELSE 'failed' END,
                                 content_key = r.content_key, sealed_result = r.sealed_result
        FROM unnest($3::integer[], $4::integer[], $5::boolean[], $6::text[], $7::text[], $8::bytea[], $9::bigint[],
                    $10::bigint[], $11::bigint[])
             AS r (number, attempt, is_completed, reason, content_key, sealed_result,
                   input_tokens, cached_tokens, output_tokens)
        WHERE l.project_id = $1 AND l.batch_id = $2 AND l.number = r.number AND l.attempt = r.attempt
          AND l.state = 'running'
        RETURNING split_part(l.model, ':', 1) AS base, r.is_completed, r.reason,
                  r.input_tokens, r.cached_tokens, r.output_tokens)
    UPDATE batches b
    SET num_completed = b.num_completed + s.completed, num_failed = b.num_failed + s.failed,
        input_tokens = b.input_tokens + s.input_tokens, cached_tokens = b.cached_tokens + s.cached_tokens,
        output_tokens = b.output_tokens + s.output_tokens, counted_at = now(), waits_code = NULL, waits_message = NULL,
        lines_per_s = b.lines_per_s * (1 - least(1, t.since_s / t.window_s))
                      + (s.completed + s.failed) / greatest(t.since_s, t.window_s),
        open_lines = (
            SELECT coalesce(jsonb_object_agg(name, number), '{}') FROM (
                SELECT name, sum(number) AS number FROM (
                    SELECT key AS name, value::bigint AS number FROM jsonb_each_text(b.open_lines)
                    UNION ALL SELECT CASE WHEN b.open_lines ? base THEN base ELSE '' END, -1 FROM stored) each
                GROUP BY name HAVING sum(number) > 0) known),
        failures = CASE WHEN s.failed = 0 THEN b.failures ELSE (
            SELECT jsonb_object_agg(reason, number) FROM (
                SELECT reason, sum(number) AS number FROM (
                    SELECT key AS reason, value::bigint AS number FROM jsonb_each_text(b.failures)
                    UNION ALL SELECT reason, count(*) FROM stored WHERE NOT is_completed GROUP BY reason) each
                GROUP BY reason) known) END
    FROM (SELECT count(*) FILTER (WHERE is_completed) AS completed, count(*) FILTER (WHERE NOT is_completed) AS failed,
                 coalesce(sum(input_tokens), 0)::bigint AS input_tokens,
                 coalesce(sum(cached_tokens), 0)::bigint AS cached_tokens,
                 coalesce(sum(output_tokens), 0)::bigint AS output_tokens FROM stored) s,
         (SELECT extract(epoch FROM now() - coalesce(counted_at, in_progress_at))::float8 AS since_s,
                 greatest(least(extract(epoch FROM now() - in_progress_at)::float8, $12), 0.001) AS window_s
          FROM batches WHERE project_id = $1 AND id = $2) t
    WHERE b.project_id = $1 AND b.id = $2
"""


async def store_results(conn: Connection, batch: LeasedBatch, results: Sequence[LineResult]) -> None:
    """Store results of a batch that the caller's transaction has locked, and count them."""
    columns = [[getattr(result, name) for result in results] for name in LineResult.__struct_fields__]
    await conn.execute(_STORE, batch.project_id, batch.id, *columns, PACE_SECONDS)


_NUM_OPEN = """
    SELECT count(*) FROM batch_lines WHERE project_id = $1 AND batch_id = $2 AND state IN ('waiting', 'running')
"""


async def num_open_lines(conn: Connection, batch: LeasedBatch) -> int:
    """Return how many lines of a batch have no result yet."""
    return int(await conn.fetchval(_NUM_OPEN, batch.project_id, batch.id))


# the end

_FINALIZE = """
    UPDATE batches SET status = 'finalizing', finalizing_at = now(), ending = $3 WHERE project_id = $1 AND id = $2
"""


async def finalize_batch(conn: Connection, batch: LeasedBatch, ending: str) -> None:
    """Set a locked batch whose lines run no more to the state in which its files are written.

    ending: the state that the batch gets once the files are written.
    """
    await conn.execute(_FINALIZE, batch.project_id, batch.id, ending)


_RESULTS = """
    SELECT number, first_byte, num_bytes, state, attempt, begun_at, content_key, sealed_result FROM batch_lines
    WHERE project_id = $1 AND batch_id = $2 AND number > $3 ORDER BY number LIMIT $4
"""


async def results_after(conn: Connection, batch: LeasedBatch, number: int, limit: int) -> list[StoredResult]:
    """Return results of the lines after the one with this number, in their order."""
    rows = await conn.fetch(_RESULTS, batch.project_id, batch.id, number, limit)
    return [StoredResult(**row) for row in rows]


_DISOWN = "SELECT disown_lines($1, $2, $3, $4)"


async def disown_lines(conn: Connection, batch: LeasedBatch, lines: Sequence[tuple[str, datetime.datetime]]) -> None:
    """Ensure that nobody is billed for lines of a locked batch that have no result.

    lines: the id of each line's request, and when the line was begun first. No usage is written until the caller's
    transaction ends.
    """
    ids, begun = [id for id, _ in lines], [at for _, at in lines]
    await conn.execute(_DISOWN, batch.project_id, batch.id, ids, begun)


_DISOWN_FAILED = """
    SELECT disown_lines($1, $2, array_agg(r.id), array_agg(l.begun_at))
    FROM unnest($3::integer[], $4::text[]) AS r (number, id)
         JOIN batch_lines l ON l.project_id = $1 AND l.batch_id = $2 AND l.number = r.number
    WHERE l.state = 'failed' HAVING count(*) > 0
"""


async def disown_failed(conn: Connection, batch: LeasedBatch, numbers: Sequence[int], ids: Sequence[str]) -> None:
    """Ensure that nobody is billed for lines of a locked batch that failed, as `disown_lines`.

    numbers, ids: the lines, and the ids of their requests in the same order.
    """
    await conn.execute(_DISOWN_FAILED, batch.project_id, batch.id, numbers, ids)


_END = """
    UPDATE batches SET status = $3, ended_at = now(), has_output = $4, has_errors = $5,
                       num_failed = num_total - num_completed,
                       failures = failures || CASE WHEN num_total > num_completed + num_failed THEN
                           jsonb_build_object('batch_' || $3, num_total - num_completed - num_failed) ELSE '{}' END
    WHERE project_id = $1 AND id = $2
"""


async def end_batch(conn: Connection, batch: LeasedBatch, status: str, *, has_output: bool, has_errors: bool) -> None:
    """End a locked batch, whose files the same transaction makes; lines that never ran count as failed.

    has_output, has_errors: whether there is an output file, and a file of errors.
    """
    await conn.execute(_END, batch.project_id, batch.id, status, has_output, has_errors)


_ANNOUNCE = """
    INSERT INTO webhook_deliveries (id, webhook_id, body)
    SELECT 'msg_' || replace(gen_random_uuid()::text, '-', ''), w.id, json_build_object(
        'type', 'batch.' || b.status,
        'timestamp', to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
        'data', json_build_object('id', b.id, 'project_id', b.project_id))::text
    FROM batches b JOIN projects p ON p.id = b.project_id JOIN webhooks w ON w.organization_id = p.organization_id
    WHERE b.project_id = $1 AND b.id = $2 AND 'batch.' || b.status = ANY(w.events)
"""


async def announce_end(conn: Connection, batch: LeasedBatch) -> None:
    """Queue messages about the end of a batch for the organization's webhooks, in the transaction that ends it."""
    await conn.execute(_ANNOUNCE, batch.project_id, batch.id)


_CANCEL_RESTORED = """
    UPDATE batches SET status = 'cancelling', cancelling_at = coalesce(cancelling_at, now()), leased_until = '-infinity'
    WHERE status IN ('validating', 'in_progress')
"""


async def cancel_restored(conn: Connection) -> None:
    """Cancel the batches that a restored database shows as under way.

    Their lines may have run, and been billed, since the backup.
    """
    await conn.execute(_CANCEL_RESTORED)
