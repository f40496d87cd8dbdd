"""Looks: the results of experiments as they were shown to people, each with the time at which they were shown.

For each experiment there is at most one look a minute, none that shows the same as the one before, and one at each
change of state.
"""

from __future__ import annotations

import datetime
import math
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.domain.experiments.results import Results

if TYPE_CHECKING:
    from gateway.db.pool import Connection

EVERY = datetime.timedelta(minutes=1)
RETENTION = datetime.timedelta(days=400)
MAX_DROPPED = 1_000


class LookRow(msgspec.Struct, frozen=True):
    """One look at an experiment."""

    looked_at: datetime.datetime
    version: int
    """The number of the definition's latest change."""
    days: int
    """Whole days since the start."""
    results: Results


_KEEP = """
    INSERT INTO experiment_looks (experiment_id, version, results)
    SELECT $1, $2, $3 WHERE $4 OR (
        NOT EXISTS (
            SELECT FROM experiment_looks WHERE experiment_id = $1 AND looked_at > clock_timestamp() - $5::interval)
        AND $3::jsonb IS DISTINCT FROM (
            SELECT results FROM experiment_looks WHERE experiment_id = $1 ORDER BY looked_at DESC LIMIT 1))
    ON CONFLICT DO NOTHING
"""


async def keep_look(
    conn: Connection, experiment_id: str, version: int, days: int, results: Results, *, always: bool = False
) -> None:
    """Store results as a look, unless one was stored within the last minute, or the last one shows the same results.

    always: True: store the results in these cases as well, as at a change of the state.
    """
    stored = {"days": days, "results": _finite(msgspec.to_builtins(results))}
    await conn.execute(_KEEP, experiment_id, version, msgspec.json.encode(stored).decode(), always, EVERY)


_FIND = """
    SELECT looked_at, version, results FROM experiment_looks
    WHERE experiment_id = $1 AND looked_at <= $2 ORDER BY looked_at DESC LIMIT 1
"""


async def find_look(conn: Connection, experiment_id: str, as_of: datetime.datetime) -> LookRow | None:
    """Return the latest look that was kept up to an instant."""
    row = await conn.fetchrow(_FIND, experiment_id, as_of)
    return None if row is None else _look_of(row)


_LIST = """
    SELECT looked_at, version, results FROM experiment_looks
    WHERE experiment_id = $1 AND looked_at > $2 ORDER BY looked_at LIMIT $3
"""


async def list_looks(
    conn: Connection, experiment_id: str, after: datetime.datetime, most: int = 1_000
) -> list[LookRow]:
    """Return looks in the order of their times, from the one that follows `after`."""
    return [_look_of(row) for row in await conn.fetch(_LIST, experiment_id, after, most)]


_DROP_OLD = """
    DELETE FROM experiment_looks WHERE (experiment_id, looked_at) IN (
        SELECT experiment_id, looked_at FROM experiment_looks
        WHERE looked_at < clock_timestamp() - $1::interval LIMIT $2)
"""


async def drop_old_looks(conn: Connection) -> None:
    """Delete some of the looks that are older than their retention."""
    await conn.execute(_DROP_OLD, RETENTION, MAX_DROPPED)


def _look_of(row: Any) -> LookRow:
    stored = msgspec.json.decode(row["results"])
    results = msgspec.convert(stored["results"], Results, strict=False)
    return LookRow(row["looked_at"], row["version"], stored["days"], results)


def _finite(value: Any) -> Any:
    """Return a result with words in place of values that JSON cannot hold: infinite bounds, and missing estimates."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value
