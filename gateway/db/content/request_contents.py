"""The logged content of requests, encrypted but for the columns that find it: project, request and times.

Content is not shown, whether it is deleted yet or not, if it has expired, is older than its project's days, was logged
before logging was turned off, or is of a purged project.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from gateway.db.pool import Connection

DROP_AT_ONCE = 1000
"""The most rows that one transaction deletes."""


class ContentRow(msgspec.Struct, frozen=True):
    """The encrypted content of one request, and when it is deleted."""

    created_at: datetime.datetime
    expires_at: datetime.datetime
    content_key: str
    """The id of the key that encrypts the sealed fields."""
    sealed: bytes


# The project is locked, so that nothing is logged after that was turned off.
_INSERT = """
    WITH allowed AS (
        SELECT id, log_content_days FROM projects
        WHERE id = $1 AND log_content_days > 0 AND purged_at IS NULL FOR SHARE)
    INSERT INTO request_contents (project_id, request_id, expires_at, content_key, sealed)
    SELECT allowed.id, $2, now() + allowed.log_content_days * interval '1 day', $3, $4 FROM allowed
    ON CONFLICT (project_id, request_id) DO NOTHING
"""


async def insert_content(
    conn: Connection, project_id: str, request_id: str, *, content_key: str, sealed: bytes
) -> None:
    """Store the content of a request, unless it is there already, or its project does not log any more."""
    await conn.execute(_INSERT, project_id, request_id, content_key, sealed)


_GET = """
    SELECT c.created_at, least(c.expires_at, c.created_at + p.log_content_days * interval '1 day') AS expires_at,
           c.content_key, c.sealed
    FROM request_contents c JOIN projects p ON p.id = c.project_id
    WHERE c.project_id = $1 AND c.request_id = $2 AND c.expires_at > now()
      AND c.created_at > greatest(now() - p.log_content_days * interval '1 day', p.contents_from)
      AND p.purged_at IS NULL
"""


async def get_content(conn: Connection, project_id: str, request_id: str) -> ContentRow | None:
    """Return the content of a request. Its expires_at is by the project's present days; None if it is not stored."""
    row = await conn.fetchrow(_GET, project_id, request_id)
    return ContentRow(**row) if row else None


_DROP_EXPIRED = """
    DELETE FROM request_contents WHERE ctid = ANY (ARRAY (
        SELECT ctid FROM request_contents WHERE expires_at <= now()
        ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING true
"""


async def drop_expired_contents(conn: Connection) -> int:
    """Delete some contents whose time is over. Return how many."""
    return len(await conn.fetch(_DROP_EXPIRED, DROP_AT_ONCE))


# The rows of each project, by the index of its oldest; without the lateral join all rows would be read.
_DROP_FORBIDDEN = """
    DELETE FROM request_contents WHERE ctid = ANY (ARRAY (
        SELECT old.ctid FROM projects p CROSS JOIN LATERAL (
            SELECT c.ctid FROM request_contents c
            WHERE c.project_id = p.id AND c.created_at <=
                  CASE WHEN p.purged_at IS NULL
                       THEN greatest(now() - p.log_content_days * interval '1 day', p.contents_from)
                       ELSE 'infinity' END
            ORDER BY c.created_at LIMIT $1 FOR UPDATE SKIP LOCKED) old
        LIMIT $1))
    RETURNING true
"""


async def drop_forbidden_contents(conn: Connection) -> int:
    """Delete some contents that their project does not log any more, or of a purged one. Return how many."""
    return len(await conn.fetch(_DROP_FORBIDDEN, DROP_AT_ONCE))


_DROP_OF_PROJECT = """
    DELETE FROM request_contents WHERE ctid = ANY (ARRAY (
        SELECT ctid FROM request_contents WHERE project_id = $1 LIMIT $2 FOR UPDATE SKIP LOCKED))
    RETURNING true
"""


async def drop_contents_of(conn: Connection, project_id: str) -> int:
    """Delete some of a project's logged contents; return how many."""
    return len(await conn.fetch(_DROP_OF_PROJECT, project_id, DROP_AT_ONCE))
