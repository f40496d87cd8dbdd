"""Sums over units by epoch and arm, of each day and of all days together: added to by the bookkeeper, read for results
and health.

Rows of all days together are what the days' rows add up to. Results read these alone: they take no longer after a
hundred days than after one.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from gateway.db.experiments import segments
from gateway.domain.experiments.ages import AgeRow
from gateway.domain.experiments.quantiles import EDGES_MS
from gateway.domain.experiments.results import SumsRow, TimesRow
from gateway.domain.experiments.sums import NO_UNITS, Sums
from gateway.domain.experiments.units import NOTHING, AgeKey, Changes, Key

if TYPE_CHECKING:
    from gateway.db.pool import Connection

_FIRST_DAY = datetime.date(1970, 1, 1).toordinal()


UnitsOf = dict[tuple[str, Key], tuple[int, int, int]]
SumsOf = dict[tuple[str, Key, str], Sums]
TimesOf = dict[tuple[str, Key, str, int], int]
AgesOf = dict[tuple[str, AgeKey], Sums]
TotalsOf = dict[tuple[str, int, int, str], Sums]
"""By experiment, epoch, arm and metric, of all days together."""
TimeTotalsOf = dict[tuple[str, int, int, str, int], int]
"""By experiment, epoch, arm, metric and bucket, of all days together."""


class Total:
    """Changes of many units of many experiments, added up: what one statement for each table writes."""

    def __init__(self) -> None:
        self.units: UnitsOf = {}
        self.sums: SumsOf = {}
        self.times: TimesOf = {}
        self.ages: AgesOf = {}
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
        for age, sums in changes.ages.items():
            self.ages[experiment_id, age] = self.ages.get((experiment_id, age), NO_UNITS) + sums
        for of_segments, (units, delivered, requests) in changes.segment_units.items():
            known = self.segment_units.get((experiment_id, of_segments), NOTHING)
            counted = known[0] + units, known[1] + delivered, known[2] + requests
            self.segment_units[experiment_id, of_segments] = counted
        for (of_segments, metric), sums in changes.segment_sums.items():
            where = experiment_id, of_segments, metric
            self.segment_sums[where] = self.segment_sums.get(where, NO_UNITS) + sums

    def totals(self) -> TotalsOf:
        """Return the sums of all days together."""
        found: TotalsOf = {}
        for (experiment_id, (_, epoch, arm), metric), sums in self.sums.items():
            place = experiment_id, epoch, arm, metric
            found[place] = found.get(place, NO_UNITS) + sums
        return {place: each for place, each in found.items() if each != NO_UNITS}

    def time_totals(self) -> TimeTotalsOf:
        """Return the units by bucket of all days together."""
        found: TimeTotalsOf = {}
        for (experiment_id, (_, epoch, arm), metric, bucket), num in self.times.items():
            place = experiment_id, epoch, arm, metric, bucket
            found[place] = found.get(place, 0) + num
        return {place: num for place, num in found.items() if num}

    def full(self) -> tuple[UnitsOf, SumsOf, TimesOf, AgesOf]:
        """Return what is not nothing: units, sums, times and ages."""
        return (
            {key: each for key, each in self.units.items() if each != NOTHING},
            {key: each for key, each in self.sums.items() if each != NO_UNITS},
            {key: each for key, each in self.times.items() if each},
            {key: each for key, each in self.ages.items() if each != NO_UNITS},
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
_ADD_TOTALS = """
    INSERT INTO experiment_totals AS s (experiment_id, epoch, arm, metric, n, y, yy, x, xx, xy, d, dd, yd)
    SELECT experiment_id, epoch, arm, metric, n, y::numeric, yy::numeric, x::numeric, xx::numeric, xy::numeric,
           d::numeric, dd::numeric, yd::numeric
    FROM unnest($1::text[], $2::smallint[], $3::smallint[], $4::text[], $5::bigint[], $6::text[], $7::text[],
                $8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::text[])
        AS v (experiment_id, epoch, arm, metric, n, y, yy, x, xx, xy, d, dd, yd)
    ON CONFLICT (experiment_id, epoch, arm, metric) DO UPDATE SET
        n = s.n + excluded.n, y = s.y + excluded.y, yy = s.yy + excluded.yy, x = s.x + excluded.x,
        xx = s.xx + excluded.xx, xy = s.xy + excluded.xy, d = s.d + excluded.d, dd = s.dd + excluded.dd,
        yd = s.yd + excluded.yd
"""
_ADD_TIME_TOTALS = """
    INSERT INTO experiment_time_totals AS t (experiment_id, epoch, arm, metric, bucket, num_units)
    SELECT * FROM unnest($1::text[], $2::smallint[], $3::smallint[], $4::text[], $5::smallint[], $6::bigint[])
    ON CONFLICT (experiment_id, epoch, arm, metric, bucket) DO UPDATE SET num_units = t.num_units + excluded.num_units
"""
_ADD_AGES = """
    INSERT INTO experiment_ages AS s (experiment_id, epoch, arm, metric, age, n, y, yy, d, dd, yd)
    SELECT experiment_id, epoch, arm, metric, age, n, y::numeric, yy::numeric, d::numeric, dd::numeric, yd::numeric
    FROM unnest($1::text[], $2::smallint[], $3::smallint[], $4::text[], $5::smallint[], $6::bigint[], $7::text[],
                $8::text[], $9::text[], $10::text[], $11::text[])
        AS v (experiment_id, epoch, arm, metric, age, n, y, yy, d, dd, yd)
    ON CONFLICT (experiment_id, epoch, arm, metric, age) DO UPDATE SET
        n = s.n + excluded.n, y = s.y + excluded.y, yy = s.yy + excluded.yy, d = s.d + excluded.d,
        dd = s.dd + excluded.dd, yd = s.yd + excluded.yd
"""


async def add_total(conn: Connection, total: Total) -> None:
    """Add changes to the tables, in a transaction that has the lock of units and sums."""
    units, sums, times, ages = total.full()
    if units:
        rows = [(each, *_place(key), *units[each, key]) for each, key in sorted(units)]
        await conn.execute(_ADD_UNITS, *zip(*rows, strict=True))
    if sums:
        values = [
            (each, *_place(key), metric, *_numbers(sums[each, key, metric])) for each, key, metric in sorted(sums)
        ]
        await conn.execute(_ADD_SUMS, *zip(*values, strict=True))
    if totals := total.totals():
        values = [(*place, *_numbers(totals[place])) for place in sorted(totals)]
        await conn.execute(_ADD_TOTALS, *zip(*values, strict=True))
    if times:
        buckets = [
            (each, *_place(key), metric, bucket, times[each, key, metric, bucket])
            for each, key, metric, bucket in sorted(times)
        ]
        await conn.execute(_ADD_TIMES, *zip(*buckets, strict=True))
    if time_totals := total.time_totals():
        listed = [(*place, time_totals[place]) for place in sorted(time_totals)]
        await conn.execute(_ADD_TIME_TOTALS, *zip(*listed, strict=True))
    if ages:
        of_days = [
            (each, *key, one.n, *map(str, (one.y, one.yy, one.d, one.dd, one.yd)))
            for (each, key), one in sorted(ages.items(), key=_by_key)
        ]
        await conn.execute(_ADD_AGES, *zip(*of_days, strict=True))
    await segments.add_segments(conn, total.segment_units, total.segment_sums)


def _by_key(item: tuple[tuple[str, AgeKey], Sums]) -> tuple[str, AgeKey]:
    return item[0]


def _numbers(sums: Sums) -> tuple[int | str, ...]:
    """Return the columns of sums. Those that may have more than 64 bits are texts."""
    return sums.n, *(str(value) for value in msgspec.structs.astuple(sums)[1:])


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


_ALL_UNITS = """
    SELECT day - date '1970-01-01', epoch, arm, num_units, num_delivered, num_requests FROM experiment_days
    WHERE experiment_id = $1
"""
_ALL_SUMS = """
    SELECT day - date '1970-01-01', epoch, arm, metric, n, y, yy, x, xx, xy, d, dd, yd FROM experiment_sums
    WHERE experiment_id = $1
"""
_ALL_AGES = """
    SELECT epoch, arm, metric, age, n, y, yy, d, dd, yd FROM experiment_ages WHERE experiment_id = $1
"""
_ALL_TOTALS = """
    SELECT epoch, arm, metric, n, y, yy, x, xx, xy, d, dd, yd FROM experiment_totals WHERE experiment_id = $1
"""
_ALL_TIME_TOTALS = """
    SELECT epoch, arm, metric, bucket, num_units FROM experiment_time_totals WHERE experiment_id = $1
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
    for epoch, arm, metric, age, n, y, yy, d, dd, yd in await conn.fetch(_ALL_AGES, experiment_id):
        total.ages[experiment_id, (epoch, arm, metric, age)] = Sums(n, y, yy, d=d, dd=dd, yd=yd)
    return total


async def load_totals(conn: Connection, experiment_id: str) -> TotalsOf:
    """Return the sums of all days together, to compare them with a recount."""
    found = {}
    for epoch, arm, metric, *sums in await conn.fetch(_ALL_TOTALS, experiment_id):
        found[experiment_id, epoch, arm, metric] = Sums(*sums)
    return {place: each for place, each in found.items() if each != NO_UNITS}


async def load_time_totals(conn: Connection, experiment_id: str) -> TimeTotalsOf:
    """Return the units by bucket of all days together, to compare them with a recount."""
    rows = await conn.fetch(_ALL_TIME_TOTALS, experiment_id)
    return {(experiment_id, epoch, arm, metric, bucket): num for epoch, arm, metric, bucket, num in rows if num}
