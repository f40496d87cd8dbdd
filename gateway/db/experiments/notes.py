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
    exposed_at: datetime.datetime


# What of an experiment that was removed meanwhile is noted has no place any more. In one order, so that no two gateways
# wait for each other. The earliest epoch stays: a note of it may come later than others.
_UNITS = """
    WITH live AS (SELECT id FROM experiments WHERE id = ANY ($1::text[]) ORDER BY id FOR KEY SHARE)
    INSERT INTO experiment_units AS known (experiment_id, digest, epoch, arm, noted_at)
    SELECT u.experiment_id, u.digest, u.epoch, u.arm, u.exposed_at
    FROM unnest($1::text[], $2::bytea[], $3::smallint[], $4::smallint[], $5::timestamptz[])
            AS u (experiment_id, digest, epoch, arm, exposed_at)
        JOIN live ON live.id = u.experiment_id
    ORDER BY u.experiment_id, u.digest
    ON CONFLICT (experiment_id, digest) DO UPDATE SET
        epoch = excluded.epoch, arm = excluded.arm, noted_at = excluded.noted_at
        WHERE excluded.epoch < known.epoch
    RETURNING experiment_id, epoch
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
) -> set[tuple[str, int]]:
    """Write what one gateway noted, in the caller's transaction, and return the experiments and epochs of units that
    nobody had noted. reasons: how many requests were not analysed, by experiment, day in UTC and reason."""
    written: set[tuple[str, int]] = set()
    if units:
        columns = zip(*(msgspec.structs.astuple(each) for each in units), strict=True)
        written = {(row["experiment_id"], row["epoch"]) for row in await conn.fetch(_UNITS, *map(list, columns))}
    new = await write_exposed(conn, refused)
    if new:
        rows = [(each.experiment_id, each.request_id, each.created_at) for each in refused if each.request_id in new]
        await conn.execute(_REFUSALS, *map(list, zip(*rows, strict=True)))
    if reasons:
        columns = zip(*((*key, num) for key, num in reasons.items()), strict=True)
        await conn.execute(_REASONS, *map(list, columns))
    return written
