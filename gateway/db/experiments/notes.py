"""The notes of gateways about requests to experiments, written each second: units, refusals, and unanalysed requests.

A gateway states the time up to which all its notes are written: new weights wait for that, so that no unit that has
seen an arm moves. The batches of notes have numbers, so that a batch that is sent again is not written twice.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from gateway.db.experiments.exposures import ExposedRequest, write_exposed

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class NewUnit(msgspec.Struct, frozen=True):
    """A unit that was exposed for the first time, as far as this gateway knows."""

    experiment_id: str
    digest: bytes
    """The digest of the unit."""
    epoch: int
    """The epoch that chose the arm."""
    arm: int
    """The index of the arm."""
    exposed_at: datetime.datetime


# A note of an experiment that was removed meanwhile is dropped. In one order, so that no two gateways wait for each
# other. The earliest epoch stays: a note of it may come later than others. Not so where a gateway had not heard of new
# weights for so long that the unit was exposed under these before.
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
        WHERE excluded.epoch < known.epoch AND excluded.noted_at < known.noted_at + interval '1 minute'
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
    """Write the notes of one gateway, and return the experiments and epochs of units that no gateway had noted.

    Runs in the caller's transaction.
    reasons: the number of requests that were not analysed, by experiment, day in UTC and reason.
    """
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


SILENT_FOR = datetime.timedelta(minutes=10)
"""The time for which new weights wait for a gateway that does not write: it was killed or cut off.

Its later notes are processed once they are written (`note_late_units`).
"""

_BEGIN_BATCH = """
    INSERT INTO experiment_gateways AS g (id, batch, noted_until) VALUES ($1, $2, clock_timestamp() - $3::interval)
    ON CONFLICT (id) DO UPDATE SET batch = excluded.batch, noted_until = excluded.noted_until
        WHERE g.batch < excluded.batch
    RETURNING true
"""


async def begin_batch(conn: Connection, gateway_id: str, batch: int, age: datetime.timedelta) -> bool:
    """Return True if a gateway's batch of notes is still to be written; False if it is there, unknown to the gateway.

    Called in the transaction that writes the batch, before it. batch: the number of the batch, higher than those
    before. age: the longest time for which notes may be missing in the batch.
    """
    return bool(await conn.fetchval(_BEGIN_BATCH, gateway_id, batch, age))


# Written where somebody waits for it, and once a minute, so that an idle gateway costs next to nothing.
_NOTHING_NOTED = """
    WITH told AS (
        UPDATE experiment_gateways SET noted_until = clock_timestamp() - $2::interval
        WHERE id = $1 AND (noted_until < clock_timestamp() - interval '1 minute'
                           OR EXISTS (SELECT FROM experiments WHERE next_weights IS NOT NULL))
    )
    INSERT INTO experiment_gateways (id, batch, noted_until) SELECT $1, 0, clock_timestamp() - $2::interval
    WHERE NOT EXISTS (SELECT FROM experiment_gateways WHERE id = $1)
"""


async def record_no_notes(conn: Connection, gateway_id: str, age: datetime.timedelta) -> None:
    """Record that a gateway has no notes to write. age: notes older than this are all written."""
    await conn.execute(_NOTHING_NOTED, gateway_id, age)


_LEAVE = "DELETE FROM experiment_gateways WHERE id = $1"


async def remove_gateway(conn: Connection, gateway_id: str) -> None:
    """Delete the state of a gateway that has written all its notes and makes no more."""
    await conn.execute(_LEAVE, gateway_id)


_DROP_SILENT = "DELETE FROM experiment_gateways WHERE noted_until < clock_timestamp() - $1::interval"


async def drop_silent_gateways(conn: Connection) -> None:
    """Delete the state of gateways that have been silent for long. One that comes back makes itself known again."""
    await conn.execute(_DROP_SILENT, SILENT_FOR)


# An epoch that no slot has any more assigns no new units.
_LATE = """
    UPDATE experiments e SET exposed_at = clock_timestamp()
    WHERE e.exposed_at IS NOT NULL AND e.id IN (
        SELECT x.id FROM unnest($1::text[], $2::smallint[]) AS u (experiment_id, epoch)
            JOIN experiments x ON x.id = u.experiment_id
        WHERE position(set_byte('\\x00'::bytea, 0, u.epoch) IN x.slots) = 0)
"""


async def note_late_units(conn: Connection, units: Collection[tuple[str, int]]) -> None:
    """Make all gateways read exposed units again, in experiments where new units got weights that had been replaced.

    units: the experiment and the epoch of each new unit, committed by now.
    """
    if units:
        pairs = sorted(set(units))
        await conn.execute(_LATE, [each for each, _ in pairs], [epoch for _, epoch in pairs])
