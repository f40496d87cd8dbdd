"""Reads sums for results and health, of each day or of all days together."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from gateway.domain.experiments.ages import AgeRow
from gateway.domain.experiments.quantiles import EDGES_MS
from gateway.domain.experiments.results import SumsRow, TimesRow
from gateway.domain.experiments.sums import Sums

if TYPE_CHECKING:
    from gateway.db.pool import Connection

_UNITS = """
    SELECT CASE WHEN $2 THEN day - date '1970-01-01' ELSE 0 END AS day, epoch, arm, sum(num_units) AS units,
           sum(num_delivered) AS delivered, sum(num_requests) AS requests
    FROM experiment_days WHERE experiment_id = $1 GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""


class DayUnits(msgspec.Struct, frozen=True):
    """Units that were exposed first on one day, or on any."""

    day: int
    """Days since 1970 in UTC; 0 for all days together."""
    epoch: int
    arm: int
    """The index of the arm."""
    units: int
    delivered: int
    requests: int
    """The requests of the units within their outcome windows."""


async def load_units_by_day(conn: Connection, experiment_id: str, *, by_day: bool) -> list[DayUnits]:
    """Return how many units were exposed first in each epoch to each arm, of each day or of all days together."""
    return [DayUnits(**row) for row in await conn.fetch(_UNITS, experiment_id, by_day)]


_SUMS = """
    SELECT day - date '1970-01-01', epoch, arm, metric, n, y, yy, x, xx, xy, d, dd, yd
    FROM experiment_sums WHERE experiment_id = $1 AND metric = ANY ($2)
"""
_TOTALS = """
    SELECT 0, epoch, arm, metric, n, y, yy, x, xx, xy, d, dd, yd
    FROM experiment_totals WHERE experiment_id = $1 AND metric = ANY ($2)
"""


async def load_sums(conn: Connection, experiment_id: str, metrics: Collection[str], *, by_day: bool) -> list[SumsRow]:
    """Return the sums of some metrics, of each day or of all days together."""
    if by_day:
        rows = await conn.fetch(_SUMS, experiment_id, list(metrics))
    else:
        rows = await conn.fetch(_TOTALS, experiment_id, list(metrics))
    return [SumsRow(day, epoch, arm, metric, Sums(*sums)) for day, epoch, arm, metric, *sums in rows]


_TIMES = """
    SELECT day - date '1970-01-01', epoch, arm, metric, array_agg(bucket), array_agg(num_units)
    FROM experiment_times WHERE experiment_id = $1 AND metric = ANY ($2) AND num_units <> 0 GROUP BY 1, 2, 3, 4
"""
_TIME_TOTALS = """
    SELECT 0, epoch, arm, metric, array_agg(bucket), array_agg(num_units)
    FROM experiment_time_totals WHERE experiment_id = $1 AND metric = ANY ($2) AND num_units <> 0 GROUP BY 2, 3, 4
"""


async def load_times(conn: Connection, experiment_id: str, metrics: Collection[str], *, by_day: bool) -> list[TimesRow]:
    """Return how many units have their time of a metric in each bucket, of each day or of all days together."""
    if not metrics:
        return []
    if by_day:
        rows = await conn.fetch(_TIMES, experiment_id, list(metrics))
    else:
        rows = await conn.fetch(_TIME_TOTALS, experiment_id, list(metrics))
    found = []
    for day, epoch, arm, metric, buckets, numbers in rows:
        counts = [0] * (len(EDGES_MS) + 1)
        for bucket, num in zip(buckets, numbers, strict=True):
            counts[bucket] = num
        found.append(TimesRow(day, epoch, arm, metric, tuple(counts)))
    return sorted(found, key=lambda row: (row.day, row.epoch, row.arm, row.metric))


_AGES = """
    SELECT age, epoch, arm, metric, n, y, yy, d, dd, yd FROM experiment_ages
    WHERE experiment_id = $1 AND metric = ANY ($2)
"""


async def load_ages(conn: Connection, experiment_id: str, metrics: Collection[str]) -> list[AgeRow]:
    """Return the sums of some metrics by days since exposure, over the units that did something on such a day."""
    rows = await conn.fetch(_AGES, experiment_id, list(metrics))
    return [
        AgeRow(age, epoch, arm, metric, Sums(n, y, yy, d=d, dd=dd, yd=yd))
        for age, epoch, arm, metric, n, y, yy, d, dd, yd in rows
    ]


_REASONS = """
    SELECT reason, sum(num_requests) AS num FROM experiment_reasons
    WHERE experiment_id = $1 AND NOT starts_with(reason, 'shadow.') GROUP BY reason
"""


async def load_reasons(conn: Connection, experiment_id: str) -> dict[str, int]:
    """Return how many requests are not analysed, by the reason why they got their arm."""
    return {row["reason"]: row["num"] for row in await conn.fetch(_REASONS, experiment_id)}
