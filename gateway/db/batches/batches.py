"""Batches as their projects see them, and the deletion of their rows. Batches of a purged project are not shown."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from gateway.db.pool import Connection

RETENTION_DAYS = 30
"""Days for which a batch is shown after its end."""

DROP_AT_ONCE = 200


class BatchRow(msgspec.Struct, frozen=True, kw_only=True):
    """A batch as the project may see it."""

    id: str
    created_at: datetime.datetime
    api_key_id: str
    endpoint: str
    input_file_id: str
    output_file_id: str
    error_file_id: str
    has_output: bool
    """True if there is an output file."""
    has_errors: bool
    """True if there is an error file."""
    status: str
    expires_at: datetime.datetime
    in_progress_at: datetime.datetime | None
    finalizing_at: datetime.datetime | None
    cancelling_at: datetime.datetime | None
    ended_at: datetime.datetime | None
    num_total: int
    num_completed: int
    num_failed: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    content_key: str
    """The id of the key that encrypts the sealed fields."""
    sealed_metadata: bytes
    """The encrypted metadata of the client."""
    sealed_errors: bytes | None
    """The encrypted faults of the input file; None where there are none."""
    failures: str
    """A JSON object: the number of failed lines by the code of the error."""
    lines_per_s: float
    """The lines per second of the last minute."""
    waits_code: str | None
    """The code of the error for which no line can run; None where lines run."""
    waits_message: str | None
    """The text of the error for which no line can run; None where lines run."""


class NewBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that is about to be made."""

    project_id: str
    id: str
    api_key_id: str
    endpoint: str
    input_file_id: str
    output_file_id: str
    error_file_id: str
    keep_seconds: int | None
    """Seconds for which output and error files are kept; None: until they are deleted."""
    window_seconds: int
    """Seconds from the creation until the batch expires."""
    content_key: str
    """The id of the key that encrypts the sealed fields."""
    sealed_metadata: bytes


_INSERT = """
    WITH allowed AS (SELECT id FROM projects WHERE id = $1 AND purged_at IS NULL FOR NO KEY UPDATE),
    open AS (SELECT count(*) AS number FROM batches WHERE project_id = $1 AND ended_at IS NULL)
    INSERT INTO batches AS b (project_id, id, api_key_id, endpoint, input_file_id, output_file_id, error_file_id,
                              keep_seconds, expires_at, content_key, sealed_metadata)
    SELECT allowed.id, $2, $3, $4, $5, $6, $7, $8, now() + $9 * interval '1 second', $10, $11 FROM allowed, open
    WHERE open.number < $12
    RETURNING b.id
"""
# Without a result for a while the pace is one line in that time at most.
_GET = """
    SELECT b.id, b.created_at, b.api_key_id, b.endpoint, b.input_file_id, b.output_file_id, b.error_file_id,
           b.has_output, b.has_errors, b.status, b.expires_at, b.in_progress_at, b.finalizing_at, b.cancelling_at,
           b.ended_at, b.num_total, b.num_completed, b.num_failed, b.input_tokens, b.cached_tokens, b.output_tokens,
           b.content_key, b.sealed_metadata, b.sealed_errors, b.failures,
           least(b.lines_per_s, 1 / nullif(greatest(extract(epoch FROM now() - b.counted_at), 0), 0))::float8
               AS lines_per_s, b.waits_code, b.waits_message
    FROM batches b JOIN projects p ON p.id = b.project_id
    WHERE b.project_id = $1 AND b.id = $2 AND p.purged_at IS NULL
"""


async def insert_batch(conn: Connection, batch: NewBatch, *, max_open: int) -> bool:
    """Make a batch; return False where its project has max_open others that have not ended, or is purged."""
    return bool(
        await conn.fetchval(
            _INSERT,
            batch.project_id,
            batch.id,
            batch.api_key_id,
            batch.endpoint,
            batch.input_file_id,
            batch.output_file_id,
            batch.error_file_id,
            batch.keep_seconds,
            batch.window_seconds,
            batch.content_key,
            batch.sealed_metadata,
            max_open,
        )
    )


async def get_batch(conn: Connection, project_id: str, batch_id: str) -> BatchRow | None:
    """Return a batch of a project; None where there is none."""
    row = await conn.fetchrow(_GET, project_id, batch_id)
    return BatchRow(**row) if row else None


_LIST = """
    SELECT b.id, b.created_at, b.api_key_id, b.endpoint, b.input_file_id, b.output_file_id, b.error_file_id,
           b.has_output, b.has_errors, b.status, b.expires_at, b.in_progress_at, b.finalizing_at, b.cancelling_at,
           b.ended_at, b.num_total, b.num_completed, b.num_failed, b.input_tokens, b.cached_tokens, b.output_tokens,
           b.content_key, b.sealed_metadata, b.sealed_errors, b.failures,
           least(b.lines_per_s, 1 / nullif(greatest(extract(epoch FROM now() - b.counted_at), 0), 0))::float8
               AS lines_per_s, b.waits_code, b.waits_message
    FROM batches b JOIN projects p ON p.id = b.project_id
    WHERE b.project_id = $1 AND p.purged_at IS NULL
      AND ($2::text IS NULL OR (b.created_at, b.id) < (
           SELECT created_at, id FROM batches WHERE project_id = $1 AND id = $2))
    ORDER BY b.created_at DESC, b.id DESC LIMIT $3
"""


async def list_batches(conn: Connection, project_id: str, *, after: str | None, limit: int) -> list[BatchRow]:
    """Return a page of a project's batches, the newest first.

    after: the id of the last batch of the page before; None: the page is the first. limit: the most batches.
    """
    return [BatchRow(**row) for row in await conn.fetch(_LIST, project_id, after, limit)]


LET_GO_SECONDS = 2.5
"""The seconds after which a cancelled batch is taken from a gateway that has not released it."""

_CANCEL = """
    UPDATE batches SET status = 'cancelling', cancelling_at = now(),
                       leased_until = least(leased_until, now() + $3 * interval '1 second')
    WHERE project_id = $1 AND id = $2 AND status IN ('validating', 'in_progress')
    RETURNING true
"""


async def cancel_batch(conn: Connection, project_id: str, batch_id: str) -> bool:
    """Cancel a batch, so that it ends as soon as possible; return False if it is ending or has ended.

    The gateway that works on the batch has LET_GO_SECONDS to store the results that it already has, which are billed.
    """
    return bool(await conn.fetchval(_CANCEL, project_id, batch_id, LET_GO_SECONDS))


_DROP_OLD = """
    DELETE FROM batches WHERE ctid = ANY (ARRAY (
        SELECT ctid FROM batches WHERE ended_at < now() - $1 * interval '1 day' LIMIT $2 FOR UPDATE SKIP LOCKED))
    RETURNING true
"""
_DROP_OF_PROJECT = "DELETE FROM batches WHERE project_id = $1"


async def drop_old_batches(conn: Connection) -> int:
    """Delete some of the batches that ended long ago; return how many."""
    return len(await conn.fetch(_DROP_OLD, RETENTION_DAYS, DROP_AT_ONCE))


async def drop_batches_of(conn: Connection, project_id: str) -> int:
    """Delete a project's batches with their lines. Return 0: none is left."""
    await conn.execute(_DROP_OF_PROJECT, project_id)
    return 0
