"""The names of a project's experiments that have started, as applications ask for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.db.pool import Connection

_LIST = """
    SELECT model FROM experiments
    WHERE project_id = $1 AND state IN ('running', 'paused', 'stopped') AND ($2::text IS NULL OR name = $2)
    ORDER BY name COLLATE "C"
"""


async def list_flags(conn: Connection, project_id: str, name: str | None) -> list[str]:
    """Return the model strings of a project's experiments that have started, by name. name: of the only one wanted."""
    return [row["model"] for row in await conn.fetch(_LIST, project_id, name)]
