"""Adds changes to the tables of sums, one statement for each table."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import msgspec

from gateway.db.experiments import segments
from gateway.db.experiments.sums.total import Total
from gateway.domain.experiments.sums import Sums
from gateway.domain.experiments.units import AgeKey, Key

if TYPE_CHECKING:
    from gateway.db.pool import Connection

_FIRST_DAY = datetime.date(1970, 1, 1).toordinal()

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
    units, sums, times, ages = total.nonzero()
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
    """Return the columns of sums. Numbers that may have more than 64 bits are given as texts."""
    return sums.n, *(str(value) for value in msgspec.structs.astuple(sums)[1:])


def _place(key: Key) -> tuple[datetime.date, int, int]:
    """Return the columns day, epoch and arm of a key."""
    return datetime.date.fromordinal(_FIRST_DAY + key[0]), key[1], key[2]
