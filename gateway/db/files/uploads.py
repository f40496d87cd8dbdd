"""Uploads: files that come part by part, until the client says in which order the parts are the file.

pending -> completed | cancelled; pending after its time is shown as expired
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from gateway.db.pool import Connection

RETENTION_DAYS = 1
"""Days for which an upload is shown after its time is over."""


class UploadRow(msgspec.Struct, frozen=True):
    """An upload as it is shown."""

    id: str
    created_at: datetime.datetime
    expires_at: datetime.datetime
    state: str
    """The state; `expired` where the upload is pending after its time."""
    purpose: str
    num_bytes: int
    keep_seconds: int | None
    """The seconds after which the file will expire; None: `gateway.files.service` decides by its purpose."""
    file_id: str | None
    content_key: str
    """The id of the key that encrypts the sealed fields."""
    sealed_name: bytes


class NewUpload(msgspec.Struct, frozen=True, kw_only=True):
    """An upload that is about to begin."""

    project_id: str
    id: str
    lives_seconds: int
    """The seconds after which the upload expires unless it is completed."""
    purpose: str
    num_bytes: int
    keep_seconds: int | None
    """The seconds after which the file will expire; None: `gateway.files.service` decides by its purpose."""
    content_key: str
    """The id of the key that encrypts the sealed fields."""
    sealed_name: bytes


_INSERT = """
    WITH allowed AS (
        SELECT id FROM projects WHERE id = $1 AND purged_at IS NULL FOR NO KEY UPDATE),
    pending AS (
        SELECT count(*) AS number FROM file_uploads
        WHERE project_id = $1 AND state = 'pending' AND expires_at > now())
    INSERT INTO file_uploads AS u
        (project_id, id, expires_at, purpose, num_bytes, keep_seconds, content_key, sealed_name)
    SELECT allowed.id, $2, now() + $3 * interval '1 second', $4, $5, $6, $7, $8 FROM allowed, pending
    WHERE pending.number < $9
    RETURNING u.id, u.created_at, u.expires_at,
              CASE WHEN u.state = 'pending' AND u.expires_at <= now() THEN 'expired' ELSE u.state END AS state,
              u.purpose, u.num_bytes, u.keep_seconds, u.file_id, u.content_key, u.sealed_name
"""


async def insert_upload(conn: Connection, upload: NewUpload, *, max_pending: int) -> UploadRow | None:
    """Begin an upload; None where its project has max_pending others."""
    row = await conn.fetchrow(
        _INSERT,
        upload.project_id,
        upload.id,
        upload.lives_seconds,
        upload.purpose,
        upload.num_bytes,
        upload.keep_seconds,
        upload.content_key,
        upload.sealed_name,
        max_pending,
    )
    return UploadRow(**row) if row else None


_GET = """
    SELECT u.id, u.created_at, u.expires_at,
           CASE WHEN u.state = 'pending' AND u.expires_at <= now() THEN 'expired' ELSE u.state END AS state,
           u.purpose, u.num_bytes, u.keep_seconds, u.file_id, u.content_key, u.sealed_name
    FROM file_uploads u JOIN projects p ON p.id = u.project_id
    WHERE u.project_id = $1 AND u.id = $2 AND p.purged_at IS NULL
"""
_GET_LOCKED = """
    SELECT u.id, u.created_at, u.expires_at,
           CASE WHEN u.state = 'pending' AND u.expires_at <= now() THEN 'expired' ELSE u.state END AS state,
           u.purpose, u.num_bytes, u.keep_seconds, u.file_id, u.content_key, u.sealed_name
    FROM file_uploads u JOIN projects p ON p.id = u.project_id
    WHERE u.project_id = $1 AND u.id = $2 AND p.purged_at IS NULL
    FOR UPDATE OF u
"""


async def get_upload(
    conn: Connection, project_id: str, upload_id: str, *, for_change: bool = False
) -> UploadRow | None:
    """Return an upload, locked until the transaction ends where it is about to change."""
    values = (project_id, upload_id)
    row = await (conn.fetchrow(_GET_LOCKED, *values) if for_change else conn.fetchrow(_GET, *values))
    return UploadRow(**row) if row else None


_END = "UPDATE file_uploads SET state = $3, file_id = $4 WHERE project_id = $1 AND id = $2"


async def end_upload(conn: Connection, project_id: str, upload_id: str, state: str, file_id: str | None = None) -> None:
    """End an upload that the caller's transaction has locked.

    state: the last state: completed or cancelled. file_id: the id of the file that the parts became; None without one.
    """
    await conn.execute(_END, project_id, upload_id, state, file_id)


_DROP_PARTS = """
    UPDATE file_parts p SET state = 'removed', upload_id = NULL FROM file_uploads u
    WHERE u.state = 'pending' AND u.expires_at <= now() AND p.project_id = u.project_id AND p.upload_id = u.id
"""
_DROP_OLD = """
    DELETE FROM file_uploads u WHERE u.expires_at < now() - $1 * interval '1 day'
      AND NOT EXISTS (SELECT FROM file_parts p WHERE p.project_id = u.project_id AND p.upload_id = u.id)
"""


async def drop_old_uploads(conn: Connection) -> int:
    """Mark the parts of expired uploads to be removed, and delete the rows of old uploads.

    Returns 0: nothing is left to do.
    """
    await conn.execute(_DROP_PARTS)
    await conn.execute(_DROP_OLD, RETENTION_DAYS)
    return 0
