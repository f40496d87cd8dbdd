"""The unit of each analysed request, written in the transaction that writes the request to the ledger.

The ledger itself never has a unit, since its rows cannot be removed.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from gateway.domain.experiments.segment_values import Origin

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class ExposedRequest(msgspec.Struct, frozen=True):
    """A request that got an arm of an experiment: a row of `experiment_requests`."""

    request_id: str
    project_id: str
    experiment_id: str
    digest: bytes
    """The digest of the unit."""
    epoch: int
    """The epoch that chose the arm."""
    arm: int
    """The index of the arm."""
    is_delivered: bool
    """True if the request got the arm's whole treatment."""
    created_at: datetime.datetime
    num_refused: int = 0
    """The number of refused requests of the unit, within a second, that this row stands for; 0: the request ran."""
    origin: Origin | None = None
    """The facts about the request that its arm could not change; None where they are not known."""


_UNKNOWN = (None,) * len(Origin.__struct_fields__)

# Exposures of an experiment that was removed meanwhile are dropped: the usage is written all the same. The lock keeps
# those that are still there until the transaction ends. In one order, so that no two gateways wait for each other.
_WRITE = """
    WITH live AS (SELECT id, project_id FROM experiments WHERE id = ANY ($3::text[]) ORDER BY id FOR KEY SHARE)
    INSERT INTO experiment_requests
        (request_id, project_id, experiment_id, digest, epoch, arm, is_delivered, num_refused, created_at,
         api_key_id, endpoint, stream, service_tier, gateway)
    SELECT r.request_id, r.project_id, r.experiment_id, r.digest, r.epoch, r.arm, r.is_delivered, r.num_refused,
           r.created_at, r.api_key_id, r.endpoint, r.stream, r.service_tier, r.gateway
    FROM unnest($1::text[], $2::text[], $3::text[], $4::bytea[], $5::smallint[], $6::smallint[], $7::boolean[],
                $8::integer[], $9::timestamptz[], $10::text[], $11::text[], $12::boolean[], $13::text[], $14::text[])
            AS r (request_id, project_id, experiment_id, digest, epoch, arm, is_delivered, num_refused, created_at,
                  api_key_id, endpoint, stream, service_tier, gateway)
        JOIN live ON live.id = r.experiment_id AND live.project_id = r.project_id
    ORDER BY r.request_id
    ON CONFLICT (request_id) DO NOTHING
    RETURNING request_id
"""


async def write_exposed(conn: Connection, requests: Sequence[ExposedRequest]) -> set[str]:
    """Write the units of requests, in the caller's transaction; return the ids of requests that had no row yet."""
    if not requests:
        return set()
    columns = zip(*(_columns(each) for each in requests), strict=True)
    return {row["request_id"] for row in await conn.fetch(_WRITE, *map(list, columns))}


def _columns(each: ExposedRequest) -> tuple[object, ...]:
    return (
        each.request_id,
        each.project_id,
        each.experiment_id,
        each.digest,
        each.epoch,
        each.arm,
        each.is_delivered,
        each.num_refused,
        each.created_at,
        *(msgspec.structs.astuple(each.origin) if each.origin is not None else _UNKNOWN),
    )


DROP_AT_ONCE = 10_000
"""The most rows of each table that one transaction deletes."""

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
    """Delete some of a project's units, requests and waiting events; return the number of deleted rows.

    For a project that is purged: sums are not corrected.
    """
    events = await conn.fetch(_DROP_EVENTS, project_id, DROP_AT_ONCE)
    requests = await conn.fetch(_DROP_REQUESTS, project_id, DROP_AT_ONCE)
    units = await conn.fetch(_DROP_UNITS, project_id, DROP_AT_ONCE)
    return len(events) + len(requests) + len(units)
