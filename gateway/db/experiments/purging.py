"""Deletes what the experiments of a project know of units, a little at a time: there may be millions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.db.pool import Connection

DROP_AT_ONCE = 10_000
"""Rows of each table that one transaction deletes at most."""

_DROP_EVENTS = """
    DELETE FROM experiment_events WHERE id = ANY (ARRAY (
        SELECT v.id FROM experiment_events v JOIN experiments e ON e.id = v.experiment_id
        WHERE e.project_id = $1 LIMIT $2 FOR UPDATE OF v SKIP LOCKED))
    RETURNING true
"""
_DROP_REQUESTS = """
    DELETE FROM experiment_requests WHERE ctid = ANY (ARRAY (
        SELECT r.ctid FROM experiments e CROSS JOIN LATERAL (
            SELECT ctid FROM experiment_requests WHERE experiment_id = e.id LIMIT $2 FOR UPDATE SKIP LOCKED) r
        WHERE e.project_id = $1 LIMIT $2))
    RETURNING true
"""
_DROP_UNITS = """
    DELETE FROM experiment_units WHERE ctid = ANY (ARRAY (
        SELECT u.ctid FROM experiments e CROSS JOIN LATERAL (
            SELECT ctid FROM experiment_units WHERE experiment_id = e.id LIMIT $2 FOR UPDATE SKIP LOCKED) u
        WHERE e.project_id = $1 LIMIT $2))
    RETURNING true
"""


async def drop_units_of(conn: Connection, project_id: str) -> int:
    """Delete some of a project's units, of their requests, and of what waits to be counted; returns how many rows.

    For a project that is purged: sums are not corrected.
    """
    statements = _DROP_EVENTS, _DROP_REQUESTS, _DROP_UNITS
    return sum([len(await conn.fetch(each, project_id, DROP_AT_ONCE)) for each in statements])
