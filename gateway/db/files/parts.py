"""Parts: the contents of the file store.

A row is there before the first piece of its part is written, and stays until the last one is deleted, so that nothing
lies in the store that no row names.

    coming -> whole -> removed
    coming ----------> removed    the pieces of a request that ended early
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from gateway.db.pool import Connection

FORGOTTEN_S = 3600
"""Seconds without a sign of life after which a part that was arriving counts as given up."""

REMOVE_AT_ONCE = 100


class PartRow(msgspec.Struct, frozen=True):
    """A part of a file."""

    id: str
    num_bytes: int
    content_key: str
    """The id of the key that encrypts the sealed fields."""


_BEGIN = """
    INSERT INTO file_parts (project_id, id, content_key)
    SELECT id, $2, $3 FROM projects WHERE id = $1 AND purged_at IS NULL
    RETURNING true
"""


async def begin_part(conn: Connection, project_id: str, part_id: str, content_key: str) -> bool:
    """Make the row of a part that is about to arrive; return False if its project is purged."""
    return bool(await conn.fetchval(_BEGIN, project_id, part_id, content_key))


_TOUCH = """
    UPDATE file_parts SET num_bytes = $3, touched_at = now() WHERE project_id = $1 AND id = $2 AND state = 'coming'
    RETURNING true
"""


async def touch_part(conn: Connection, project_id: str, part_id: str, num_bytes: int) -> bool:
    """Record the bytes of a part that have arrived; return False if the part is removed."""
    return bool(await conn.fetchval(_TOUCH, project_id, part_id, num_bytes))


_FINISH = """
    UPDATE file_parts SET state = 'whole', num_bytes = $3, upload_id = $4, file_id = $5, number = $6
    WHERE project_id = $1 AND id = $2 AND state = 'coming'
    RETURNING true
"""


async def finish_part(
    conn: Connection,
    project_id: str,
    part_id: str,
    num_bytes: int,
    *,
    upload_id: str | None = None,
    file_id: str | None = None,
) -> bool:
    """Assign a part that has arrived whole to an upload, or to a file as its only part.

    Return False if the upload or the file is removed.
    """
    number = None if file_id is None else 0
    return bool(await conn.fetchval(_FINISH, project_id, part_id, num_bytes, upload_id, file_id, number))


_OF_FILE = """
    SELECT id, num_bytes, content_key FROM file_parts
    WHERE project_id = $1 AND file_id = $2 AND state = 'whole' ORDER BY number
"""


async def parts_of_file(conn: Connection, project_id: str, file_id: str) -> list[PartRow]:
    """Return the parts of a file in their order."""
    return [PartRow(**row) for row in await conn.fetch(_OF_FILE, project_id, file_id)]


_OF_UPLOAD = """
    SELECT id, num_bytes, content_key FROM file_parts WHERE project_id = $1 AND upload_id = $2 AND state = 'whole'
"""


async def parts_of_upload(conn: Connection, project_id: str, upload_id: str) -> list[PartRow]:
    """Return the parts that an upload has, in no order."""
    return [PartRow(**row) for row in await conn.fetch(_OF_UPLOAD, project_id, upload_id)]


_JOIN = """
    UPDATE file_parts p SET file_id = $3, upload_id = NULL, number = given.place - 1
    FROM unnest($2::text[]) WITH ORDINALITY AS given (id, place)
    WHERE p.project_id = $1 AND p.id = given.id AND p.state = 'whole'
"""


async def join_parts(conn: Connection, project_id: str, part_ids: Sequence[str], file_id: str) -> None:
    """Assign parts to a file, in this order."""
    await conn.execute(_JOIN, project_id, list(part_ids), file_id)


_REMOVE_ONE = "UPDATE file_parts SET state = 'removed' WHERE project_id = $1 AND id = $2 AND state = 'coming'"


async def give_up_part(conn: Connection, project_id: str, part_id: str) -> None:
    """Mark a part that is arriving to be removed."""
    await conn.execute(_REMOVE_ONE, project_id, part_id)


_REMOVE_OF_UPLOAD = """
    UPDATE file_parts SET state = 'removed', upload_id = NULL WHERE project_id = $1 AND upload_id = $2
"""


async def remove_parts_of_upload(conn: Connection, project_id: str, upload_id: str) -> None:
    """Mark all parts that an upload still has to be removed."""
    await conn.execute(_REMOVE_OF_UPLOAD, project_id, upload_id)


_FORGET = """
    UPDATE file_parts SET state = 'removed'
    WHERE state = 'coming' AND touched_at < now() - $1 * interval '1 second'
"""
_TO_REMOVE = "SELECT project_id, id FROM file_parts WHERE state = 'removed' ORDER BY touched_at LIMIT $1"
_DELETE = "DELETE FROM file_parts WHERE project_id = $1 AND id = $2 AND state = 'removed'"


async def parts_to_remove(conn: Connection) -> list[tuple[str, str]]:
    """Return (project, id) of some parts whose pieces are to be deleted."""
    await conn.execute(_FORGET, FORGOTTEN_S)
    return [(row["project_id"], row["id"]) for row in await conn.fetch(_TO_REMOVE, REMOVE_AT_ONCE)]


async def delete_part(conn: Connection, project_id: str, part_id: str) -> None:
    """Delete the row of a part whose pieces are gone."""
    await conn.execute(_DELETE, project_id, part_id)


_REMOVE_OF_PROJECT = "UPDATE file_parts SET state = 'removed', upload_id = NULL, file_id = NULL WHERE project_id = $1"


async def remove_parts_of_project(conn: Connection, project_id: str) -> None:
    """Mark all parts of a project to be removed."""
    await conn.execute(_REMOVE_OF_PROJECT, project_id)
