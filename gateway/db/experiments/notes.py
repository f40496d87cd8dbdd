"""What gateways note of requests to experiments each second: units, refusals, and requests that are not analysed."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from gateway.db.experiments.exposures import ExposedRequest, write_exposed

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class NewUnit(msgspec.Struct, frozen=True):
    """A unit that was exposed, as far as this gateway knows for the first time."""

    experiment_id: str
    digest: bytes
    epoch: int
    arm: int


# What of an experiment that was removed meanwhile is noted has no place any more. In one order, so that no two gateways
# wait for each other.
_UNITS = """
    WITH live AS (SELECT id FROM experiments WHERE id = ANY ($1::text[]) ORDER BY id FOR KEY SHARE)
    INSERT INTO experiment_units (experiment_id, digest, epoch, arm)
    SELECT u.experiment_id, u.digest, u.epoch, u.arm
    FROM unnest($1::text[], $2::bytea[], $3::smallint[], $4::smallint[]) AS u (experiment_id, digest, epoch, arm)
        JOIN live ON live.id = u.experiment_id
    ORDER BY u.experiment_id, u.digest
    ON CONFLICT (experiment_id, digest) DO NOTHING
"""
_REASONS = """
    WITH live AS (SELECT id FROM experiments WHERE id = ANY ($1::text[]) ORDER BY id FOR KEY SHARE)
    INSERT INTO experiment_reasons AS r (experiment_id, day, reason, num_requests)
    SELECT n.experiment_id, n.day, n.reason, n.num_requests
    FROM unnest($1::text[], $2::date[], $3::text[], $4::bigint[]) AS n (experiment_id, day, reason, num_requests)
        JOIN live ON live.id = n.experiment_id
    ORDER BY n.experiment_id, n.day, n.reason
    ON CONFLICT (experiment_id, day, reason) DO UPDATE SET num_requests = r.num_requests + excluded.num_requests
"""
_REFUSALS = """
    INSERT INTO experiment_events (experiment_id, kind, request_id, created_at)
    SELECT r.experiment_id, 'refusal', r.request_id, r.created_at
    FROM unnest($1::text[], $2::text[], $3::timestamptz[]) AS r (experiment_id, request_id, created_at)
"""


async def write_notes(
    conn: Connection,
    units: Collection[NewUnit],
    refused: Sequence[ExposedRequest],
    reasons: Mapping[tuple[str, datetime.date, str], int],
) -> None:
    """Write what one gateway noted, in the caller's transaction. reasons: how many requests were not analysed, by
    experiment, day in UTC and reason."""
    if units:
        columns = zip(*(msgspec.structs.astuple(each) for each in units), strict=True)
        await conn.execute(_UNITS, *map(list, columns))
    new = await write_exposed(conn, refused)
    if new:
        rows = [(each.experiment_id, each.request_id, each.created_at) for each in refused if each.request_id in new]
        await conn.execute(_REFUSALS, *map(list, zip(*rows, strict=True)))
    if reasons:
        columns = zip(*((*key, num) for key, num in reasons.items()), strict=True)
        await conn.execute(_REASONS, *map(list, columns))
