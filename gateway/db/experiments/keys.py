"""The secret of each project under which the units of its experiments are digested, encrypted by the gateways."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.db.pool import Connection

_FIND = "SELECT content_key, sealed FROM experiment_keys WHERE project_id = $1"


async def sealed_key(conn: Connection, project_id: str) -> tuple[str, bytes] | None:
    """Return the id of the content key of a project's secret, and the encrypted secret."""
    row = await conn.fetchrow(_FIND, project_id)
    return None if row is None else (row["content_key"], row["sealed"])


_INSERT = """
    INSERT INTO experiment_keys (project_id, content_key, sealed)
    SELECT id, $2, $3 FROM projects WHERE id = $1 AND purged_at IS NULL FOR SHARE
    ON CONFLICT (project_id) DO NOTHING
"""


async def insert_key(conn: Connection, project_id: str, content_key: str, sealed: bytes) -> None:
    """Store the secret of a project, unless it has one or is purged."""
    await conn.execute(_INSERT, project_id, content_key, sealed)


_RESEAL = """
    UPDATE experiment_keys SET content_key = $3, sealed = $4 WHERE project_id = $1 AND content_key = $2
"""


async def reseal_key(conn: Connection, project_id: str, before: str, content_key: str, sealed: bytes) -> None:
    """Store a project's secret encrypted with another content key, unless the stored one changed meanwhile.

    before: the id of the content key that encrypted the stored secret so far.
    """
    await conn.execute(_RESEAL, project_id, before, content_key, sealed)
