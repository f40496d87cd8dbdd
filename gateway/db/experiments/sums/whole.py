"""Reads all rows of one experiment from the tables of sums, to compare them with a recount."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.db.experiments.sums.total import TimeTotalsOf, Total, TotalsOf
from gateway.domain.experiments.sums import NO_UNITS, Sums

if TYPE_CHECKING:
    from gateway.db.pool import Connection

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
    """Return the sums in the tables of an experiment, to compare them with a recount."""
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
