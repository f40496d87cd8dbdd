"""Sums over units, by day, epoch and arm: added to by the bookkeeper, read for results and health."""

from __future__ import annotations

import datetime
from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from gateway.db.experiments import segments
from gateway.domain.experiments.quantiles import EDGES_MS
from gateway.domain.experiments.results import SumsRow, TimesRow
from gateway.domain.experiments.sums import NO_UNITS, Sums
from gateway.domain.experiments.units import NOTHING, Changes, Key

if TYPE_CHECKING:
    from gateway.db.pool import Connection

_FIRST_DAY = datetime.date(1970, 1, 1).toordinal()


UnitsOf = dict[tuple[str, Key], tuple[int, int, int]]
SumsOf = dict[tuple[str, Key, str], Sums]
TimesOf = dict[tuple[str, Key, str, int], int]


class Total:
    """Changes of many units of many experiments, added up: what one statement for each table writes."""

    def __init__(self) -> None:
        self.units: UnitsOf = {}
        self.sums: SumsOf = {}
        self.times: TimesOf = {}
        self.segment_units: segments.UnitsOf = {}
        self.segment_sums: segments.SumsOf = {}

    def add(self, experiment_id: str, changes: Changes) -> None:
        """Add the changes of one unit."""
        for key, (units, delivered, requests) in changes.units.items():
            known = self.units.get((experiment_id, key), NOTHING)
            self.units[experiment_id, key] = known[0] + units, known[1] + delivered, known[2] + requests
        for (key, metric), sums in changes.sums.items():
            self.sums[experiment_id, key, metric] = self.sums.get((experiment_id, key, metric), NO_UNITS) + sums
        for (key, metric, bucket), num in changes.times.items():
            place = experiment_id, key, metric, bucket
            self.times[place] = self.times.get(place, 0) + num
        for of_segments, (units, delivered, requests) in changes.segment_units.items():
            known = self.segment_units.get((experiment_id, of_segments), NOTHING)
            counted = known[0] + units, known[1] + delivered, known[2] + requests
            self.segment_units[experiment_id, of_segments] = counted
        for (of_segments, metric), sums in changes.segment_sums.items():
            where = experiment_id, of_segments, metric
            self.segment_sums[where] = self.segment_sums.get(where, NO_UNITS) + sums

    def full(self) -> tuple[UnitsOf, SumsOf, TimesOf]:
        """Return what is not nothing: units, sums and times."""
        return (
            {key: each for key, each in self.units.items() if each != NOTHING},
            {key: each for key, each in self.sums.items() if each != NO_UNITS},
            {key: each for key, each in self.times.items() if each},
        )


_ADD_UNITS = """
    INSERT INTO experiment_days AS d (experiment_id, day, epoch, arm, num_units, num_delivered, num_requests)
    SELECT * FROM unnest($1::text[], $2::date[], $3::smallint[], $4::smallint[], $5::bigint[], $6::bigint[],
                         $7::bigint[])
    ON CONFLICT (experiment_id, day, epoch, arm) DO UPDATE SET
        num_units = d.num_units + excluded.num_units, num_delivered = d.num_delivered + excluded.num_delivered,
        num_requests = d.num_requests + excluded.num_requests
"""
_ADD_SUMS = """
    INSERT INTO experiment_sums AS s (experiment_id, day, epoch, arm, metric, n, y, yy, x, xx, xy, d, dd, yd)
    SELECT experiment_id, day, epoch, arm, metric, n, y::numeric, yy::numeric, x::numeric, xx::numeric, xy::numeric,
           d::numeric, dd::numeric, yd::numeric
    FROM unnest($1::text[], $2::date[], $3::smallint[], $4::smallint[], $5::text[], $6::bigint[], $7::text[],
                $8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[])
        AS v (experiment_id, day, epoch, arm, metric, n, y, yy, x, xx, xy, d, dd, yd)
    ON CONFLICT (experiment_id, day, epoch, arm, metric) DO UPDATE SET
        n = s.n + excluded.n, y = s.y + excluded.y, yy = s.yy + excluded.yy, x = s.x + excluded.x,
        xx = s.xx + excluded.xx, xy = s.xy + excluded.xy, d = s.d + excluded.d, dd = s.dd + excluded.dd,
        yd = s.yd + excluded.yd
"""
_ADD_TIMES = """
    INSERT INTO experiment_times AS t (experiment_id, day, epoch, arm, metric, bucket, num_units)
    SELECT * FROM unnest($1::text[], $2::date[], $3::smallint[], $4::smallint[], $5::text[], $6::smallint[],
                         $7::bigint[])
    ON CONFLICT (experiment_id, day, epoch, arm, metric, bucket) DO UPDATE SET
        num_units = t.num_units + excluded.num_units
"""


async def add_total(conn: Connection, total: Total) -> None:
    """Add changes to the tables, in a transaction that has the lock of units and sums."""
    units, sums, times = total.full()
    if units:
        rows = [(each, *_place(key), *units[each, key]) for each, key in sorted(units)]
        await conn.execute(_ADD_UNITS, *zip(*rows, strict=True))
    if sums:
        values = [
            (each, *_place(key), metric, one.n, *(str(value) for value in msgspec.structs.astuple(one)[1:]))
            for each, key, metric in sorted(sums)
            if (one := sums[each, key, metric])
        ]
        await conn.execute(_ADD_SUMS, *zip(*values, strict=True))
    if times:
        buckets = [
            (each, *_place(key), metric, bucket, times[each, key, metric, bucket])
            for each, key, metric, bucket in sorted(times)
        ]
        await conn.execute(_ADD_TIMES, *zip(*buckets, strict=True))
    await segments.add_segments(conn, total.segment_units, total.segment_sums)


def _place(key: Key) -> tuple[datetime.date, int, int]:
    """Return the columns of a key."""
    return datetime.date.fromordinal(_FIRST_DAY + key[0]), key[1], key[2]


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
    units: int
    delivered: int
    requests: int
    """Their requests within their outcome windows."""


async def load_units_by_day(conn: Connection, experiment_id: str, *, by_day: bool) -> list[DayUnits]:
    """Return how many units were exposed first in each epoch to each arm, of each day or of all days together."""
    return [DayUnits(**row) for row in await conn.fetch(_UNITS, experiment_id, by_day)]


_SUMS = """
    SELECT CASE WHEN $2 THEN day - date '1970-01-01' ELSE 0 END, epoch, arm, metric, sum(n), sum(y), sum(yy), sum(x),
           sum(xx), sum(xy), sum(d), sum(dd), sum(yd)
    FROM experiment_sums WHERE experiment_id = $1 AND ($3::text[] IS NULL OR metric = ANY ($3)) GROUP BY 1, 2, 3, 4
"""


async def load_sums(
    conn: Connection, experiment_id: str, metrics: Collection[str] | None = None, *, by_day: bool
) -> list[SumsRow]:
    """Return the sums of some metrics, or of all, of each day or of all days together."""
    rows = await conn.fetch(_SUMS, experiment_id, by_day, None if metrics is None else list(metrics))
    return [SumsRow(day, epoch, arm, metric, Sums(*sums)) for day, epoch, arm, metric, *sums in rows]


_TIMES = """
    SELECT CASE WHEN $2 THEN day - date '1970-01-01' ELSE 0 END, epoch, arm, metric, bucket, sum(num_units)
    FROM experiment_times WHERE experiment_id = $1 AND metric = ANY ($3) GROUP BY 1, 2, 3, 4, 5
"""


async def load_times(conn: Connection, experiment_id: str, metrics: Collection[str], *, by_day: bool) -> list[TimesRow]:
    """Return how many units have their time of a metric in each bucket, of each day or of all days together."""
    if not metrics:
        return []
    found: dict[tuple[int, int, int, str], list[int]] = {}
    for day, epoch, arm, metric, bucket, num in await conn.fetch(_TIMES, experiment_id, by_day, list(metrics)):
        counts = found.get((day, epoch, arm, metric))
        if counts is None:
            counts = found[day, epoch, arm, metric] = [0] * (len(EDGES_MS) + 1)
        counts[bucket] += num
    return [TimesRow(*key, tuple(counts)) for key, counts in sorted(found.items())]


_REASONS = "SELECT reason, sum(num_requests) AS num FROM experiment_reasons WHERE experiment_id = $1 GROUP BY reason"


async def load_reasons(conn: Connection, experiment_id: str) -> dict[str, int]:
    """Return how many requests are not analysed, by the reason why they got their arm."""
    return {row["reason"]: row["num"] for row in await conn.fetch(_REASONS, experiment_id)}


_ALL_UNITS = """
    SELECT day - date '1970-01-01', epoch, arm, num_units, num_delivered, num_requests FROM experiment_days
    WHERE experiment_id = $1
"""
_ALL_SUMS = """
    SELECT day - date '1970-01-01', epoch, arm, metric, n, y, yy, x, xx, xy, d, dd, yd FROM experiment_sums
    WHERE experiment_id = $1
"""
_ALL_TIMES = """
    SELECT day - date '1970-01-01', epoch, arm, metric, bucket, num_units FROM experiment_times
    WHERE experiment_id = $1
"""


async def load_total(conn: Connection, experiment_id: str) -> Total:
    """Return what is in the tables of an experiment, to compare it with a recount."""
    total = Total()
    for day, epoch, arm, *numbers in await conn.fetch(_ALL_UNITS, experiment_id):
        total.units[experiment_id, (day, epoch, arm)] = (numbers[0], numbers[1], numbers[2])
    for day, epoch, arm, metric, *sums in await conn.fetch(_ALL_SUMS, experiment_id):
        total.sums[experiment_id, (day, epoch, arm), metric] = Sums(*sums)
    for day, epoch, arm, metric, bucket, num in await conn.fetch(_ALL_TIMES, experiment_id):
        total.times[experiment_id, (day, epoch, arm), metric, bucket] = num
    return total
