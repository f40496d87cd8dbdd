"""Gateways that note exposures: up to when the notes of each are written, and which batch of them was the last.

New weights wait for the notes of all gateways, so that no unit that has seen an arm moves.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.db.pool import Connection

SILENT_FOR = datetime.timedelta(minutes=10)
"""How long new weights wait for a gateway that does not write: it was killed or cut off. What it noted and writes later
is heeded from then on (`tell_of_late_units`)."""

_BEGIN_BATCH = """
    INSERT INTO experiment_gateways AS g (id, batch, noted_until) VALUES ($1, $2, clock_timestamp() - $3::interval)
    ON CONFLICT (id) DO UPDATE SET batch = excluded.batch, noted_until = excluded.noted_until
        WHERE g.batch < excluded.batch
    RETURNING true
"""


async def begin_batch(conn: Connection, gateway_id: str, batch: int, age: datetime.timedelta) -> bool:
    """Tell whether a gateway's batch of notes has to be written: False where it was, unknown to the gateway.

    In the transaction that writes the batch, before it. batch: its number, higher than those before. age: since when at
    most notes may be missing in it.
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


async def nothing_noted(conn: Connection, gateway_id: str, age: datetime.timedelta) -> None:
    """Tell that a gateway has nothing to write. age: since when at most this may be wrong."""
    await conn.execute(_NOTHING_NOTED, gateway_id, age)


_LEAVE = "DELETE FROM experiment_gateways WHERE id = $1"


async def leave(conn: Connection, gateway_id: str) -> None:
    """Forget a gateway that has written all it noted and notes no more."""
    await conn.execute(_LEAVE, gateway_id)


_DROP_SILENT = "DELETE FROM experiment_gateways WHERE noted_until < clock_timestamp() - $1::interval"


async def drop_silent(conn: Connection) -> None:
    """Forget gateways that have been silent for long. One that comes back makes itself known again."""
    await conn.execute(_DROP_SILENT, SILENT_FOR)


# An epoch that no slot has any more assigns no new units.
_LATE = """
    UPDATE experiments e SET exposed_at = clock_timestamp()
    WHERE e.exposed_at IS NOT NULL AND e.id IN (
        SELECT x.id FROM unnest($1::text[], $2::smallint[]) AS u (experiment_id, epoch)
            JOIN experiments x ON x.id = u.experiment_id
        WHERE position(set_byte('\\x00'::bytea, 0, u.epoch) IN x.slots) = 0)
"""


async def tell_of_late_units(conn: Connection, units: Collection[tuple[str, int]]) -> None:
    """Let all gateways read the list of exposed units again where units were written after the weights that assigned
    them had been replaced. units: the experiment and the epoch of each new one, committed by now."""
    if units:
        pairs = sorted(set(units))
        await conn.execute(_LATE, [each for each, _ in pairs], [epoch for _, epoch in pairs])
