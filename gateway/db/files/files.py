"""Files: their projects, their expiry, and their encrypted names.

A file that was deleted or has expired, or of a purged project, is not shown, whether its row is still there or not.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Literal

import msgspec

from gateway.db.files.parts import remove_parts_of_project

if TYPE_CHECKING:
    from gateway.db.pool import Connection

DROP_AT_ONCE = 200


class FileRow(msgspec.Struct, frozen=True):
    """A file as it is shown."""

    id: str
    created_at: datetime.datetime
    expires_at: datetime.datetime | None
    purpose: str
    num_bytes: int
    content_key: str
    """The id of the key that encrypts the sealed fields."""
    sealed_name: bytes


class NewFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is about to be made."""

    project_id: str
    id: str
    purpose: str
    num_bytes: int
    keep_seconds: int | None
    """The seconds after which the file expires; None: it stays until it is deleted."""
    content_key: str
    """The id of the key that encrypts the sealed fields."""
    sealed_name: bytes


# The project is locked, so that nothing is stored after it was purged.
_INSERT = """
    WITH allowed AS (SELECT id FROM projects WHERE id = $1 AND purged_at IS NULL FOR SHARE)
    INSERT INTO files AS f (project_id, id, purpose, num_bytes, expires_at, content_key, sealed_name)
    SELECT allowed.id, $2, $3, $4, now() + $5 * interval '1 second', $6, $7 FROM allowed
    RETURNING id, created_at, expires_at, purpose, num_bytes, content_key, sealed_name
"""


async def insert_file(conn: Connection, file: NewFile) -> FileRow | None:
    """Make a file, whose parts the caller's transaction gives to it. Return None if its project is purged."""
    row = await conn.fetchrow(
        _INSERT,
        file.project_id,
        file.id,
        file.purpose,
        file.num_bytes,
        file.keep_seconds,
        file.content_key,
        file.sealed_name,
    )
    return FileRow(**row) if row else None


_GET = """
    SELECT f.id, f.created_at, f.expires_at, f.purpose, f.num_bytes, f.content_key, f.sealed_name
    FROM files f JOIN projects p ON p.id = f.project_id
    WHERE f.project_id = $1 AND f.id = $2 AND f.removed_at IS NULL AND (f.expires_at IS NULL OR f.expires_at > now())
      AND p.purged_at IS NULL
"""


async def get_file(conn: Connection, project_id: str, file_id: str) -> FileRow | None:
    """Return a file of a project; None where there is none."""
    row = await conn.fetchrow(_GET, project_id, file_id)
    return FileRow(**row) if row else None


_PAGE_ASC = """
    SELECT f.id, f.created_at, f.expires_at, f.purpose, f.num_bytes, f.content_key, f.sealed_name
    FROM files f JOIN projects p ON p.id = f.project_id
    WHERE f.project_id = $1 AND ($2::text IS NULL OR f.purpose = $2) AND f.removed_at IS NULL
      AND (f.expires_at IS NULL OR f.expires_at > now()) AND p.purged_at IS NULL
      AND ($3::text IS NULL OR (f.created_at, f.id) > (
           SELECT created_at, id FROM files WHERE project_id = $1 AND id = $3))
    ORDER BY f.created_at ASC, f.id ASC LIMIT $4
"""
_PAGE_DESC = """
    SELECT f.id, f.created_at, f.expires_at, f.purpose, f.num_bytes, f.content_key, f.sealed_name
    FROM files f JOIN projects p ON p.id = f.project_id
    WHERE f.project_id = $1 AND ($2::text IS NULL OR f.purpose = $2) AND f.removed_at IS NULL
      AND (f.expires_at IS NULL OR f.expires_at > now()) AND p.purged_at IS NULL
      AND ($3::text IS NULL OR (f.created_at, f.id) < (
           SELECT created_at, id FROM files WHERE project_id = $1 AND id = $3))
    ORDER BY f.created_at DESC, f.id DESC LIMIT $4
"""


async def list_files(
    conn: Connection,
    project_id: str,
    *,
    purpose: str | None,
    after: str | None,
    order: Literal["asc", "desc"],
    limit: int,
) -> list[FileRow]:
    """Return a page of a project's files.

    purpose: the purpose of the files; None: any. after: the id of the last file of the page before; None: the page is
    the first. limit: the most files.
    """
    values = (project_id, purpose, after, limit)
    rows = await (conn.fetch(_PAGE_ASC, *values) if order == "asc" else conn.fetch(_PAGE_DESC, *values))
    return [FileRow(**row) for row in rows]


_REMOVE = """
    UPDATE files f SET removed_at = now() FROM projects p
    WHERE f.project_id = $1 AND f.id = $2 AND f.removed_at IS NULL AND (f.expires_at IS NULL OR f.expires_at > now())
      AND p.id = f.project_id AND p.purged_at IS NULL
    RETURNING f.purpose, f.num_bytes
"""


async def remove_file(conn: Connection, project_id: str, file_id: str) -> tuple[str, int] | None:
    """Hide a file for good and return its purpose and size; None if there is none."""
    row = await conn.fetchrow(_REMOVE, project_id, file_id)
    return (row["purpose"], row["num_bytes"]) if row else None


# The rows of files that nothing reads any more go, and their parts become the sweeper's.
_DROP_OLD = """
    WITH gone AS (
        DELETE FROM files WHERE ctid = ANY (ARRAY (
            SELECT f.ctid FROM files f
            WHERE (f.removed_at <= now() OR f.expires_at <= now()) AND NOT EXISTS (
                  SELECT FROM batches b
                  WHERE b.project_id = f.project_id AND b.input_file_id = f.id AND b.ended_at IS NULL)
            LIMIT $1 FOR UPDATE SKIP LOCKED))
        RETURNING project_id, id),
    parts AS (
        UPDATE file_parts p SET state = 'removed', file_id = NULL FROM gone
        WHERE p.project_id = gone.project_id AND p.file_id = gone.id)
    SELECT count(*) FROM gone
"""


async def drop_old_files(conn: Connection) -> int:
    """Delete some files that were deleted by their project or have expired. Return how many."""
    return int(await conn.fetchval(_DROP_OLD, DROP_AT_ONCE))


_DROP_UPLOADS_OF_PROJECT = "DELETE FROM file_uploads WHERE project_id = $1"
_DROP_OF_PROJECT = "DELETE FROM files WHERE project_id = $1"


async def drop_files_of(conn: Connection, project_id: str) -> int:
    """Delete the rows of a project's files and uploads, and return 0; the sweeper deletes the content later."""
    async with conn.transaction():
        await conn.execute(_DROP_OF_PROJECT, project_id)
        await conn.execute(_DROP_UPLOADS_OF_PROJECT, project_id)
        await remove_parts_of_project(conn, project_id)
    return 0
