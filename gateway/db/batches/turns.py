"""The work of batches that each project got at each pool, summed over gateways, by which projects take turns.

Each gateway adds the work that it charged, and reads the sums of all gateways.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gateway.db.pool import Connection

ASKS_SECONDS = 10.0
"""Seconds for which a project counts as asking, since a gateway last reported it so."""

KEPT_SECONDS = 3600.0
"""Seconds after which the row of a project that no longer asks is deleted."""


class ChargedWork(NamedTuple):
    """The work that a gateway charged to a project at a pool, and whether lines of the project wait there."""

    pool: str
    project_id: str
    work: float
    """The work since the last report."""
    asks: bool
    """True while lines of the project wait at the pool."""


class Tag(NamedTuple):
    """The work that a project got at a pool, on the scale of all projects, and whether it asks for more."""

    pool: str
    project_id: str
    tag: float
    """The project's work, plus what was added when the project came back. The project with the lowest tag has the turn.
    """
    asks: bool


# Rows are locked in their order, so that gateways do not wait for each other in a ring.
_CHARGE = """
    WITH mine AS (
        SELECT * FROM unnest($1::text[], $2::text[], $3::float8[], $4::boolean[]) AS m (pool, project_id, work, asks)),
    tags AS (
        SELECT pool, t.lifted_to + t.work + coalesce(m.work, 0) AS tag,
               t.asked_at > now() - $5 * interval '1 second' AS asks
        FROM batch_turns t LEFT JOIN mine m USING (pool, project_id) WHERE pool = ANY ($1::text[])),
    floors AS (SELECT pool, coalesce(min(tag) FILTER (WHERE asks), max(tag)) AS floor FROM tags GROUP BY pool)
    INSERT INTO batch_turns AS t (pool, project_id, lifted_to, work, asked_at)
    SELECT m.pool, m.project_id, coalesce(f.floor, 0), m.work, CASE WHEN m.asks THEN now() ELSE '-infinity' END
    FROM mine m LEFT JOIN floors f ON f.pool = m.pool
    ORDER BY m.pool, m.project_id
    ON CONFLICT (pool, project_id) DO UPDATE
    SET asked_at = greatest(t.asked_at, EXCLUDED.asked_at),
        work = t.work + EXCLUDED.work,
        lifted_to = CASE WHEN EXCLUDED.asked_at > t.asked_at + $5 * interval '1 second'
                         THEN greatest(t.lifted_to, EXCLUDED.lifted_to - t.work) ELSE t.lifted_to END
"""
_TAGS = """
    SELECT pool, project_id, lifted_to + work, asked_at > now() - $3 * interval '1 second' AS asks FROM batch_turns
    WHERE pool = ANY ($1::text[]) AND (asked_at > now() - $3 * interval '1 second' OR project_id = ANY ($2::text[]))
"""


async def share_turns(conn: Connection, charged: Sequence[ChargedWork]) -> list[Tag]:
    """Add charged work to the shared tags; return the tags at the same pools of projects that ask, or are in `charged`.

    The tag of a project that asks again after a while is raised to the smallest tag of the projects that ask.
    """
    columns = [list(column) for column in zip(*charged, strict=True)]
    await conn.execute(_CHARGE, *columns, ASKS_SECONDS)
    return [Tag(*row) for row in await conn.fetch(_TAGS, columns[0], columns[1], ASKS_SECONDS)]


_DROP_OLD = "DELETE FROM batch_turns WHERE asked_at < now() - $1 * interval '1 second'"


async def drop_old_turns(conn: Connection) -> int:
    """Delete the rows of projects that have not asked for KEPT_SECONDS; return how many."""
    return int((await conn.execute(_DROP_OLD, KEPT_SECONDS)).split()[-1])
