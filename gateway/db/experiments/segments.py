"""Units and sums by segment, over all days: added to by the bookkeeper, read for results and health."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.domain.experiments.results import SumsRow
from gateway.domain.experiments.segment_values import OTHER, Kind, Values, add_segment_values, segments_of
from gateway.domain.experiments.segments import SegmentUnits
from gateway.domain.experiments.sums import NO_UNITS, Sums
from gateway.domain.experiments.units import NOTHING, SegmentKey

if TYPE_CHECKING:
    from gateway.db.pool import Connection

UnitsOf = dict[tuple[str, SegmentKey], tuple[int, int, int]]
"""Units, wholly treated units, and their requests, by experiment, all segments of a unit, epoch and arm."""
SumsOf = dict[tuple[str, SegmentKey, str], Sums]
"""Sums by experiment, all segments of a unit, epoch, arm and metric."""

Place = tuple[str, Kind, str, int, int]
"""An experiment, a kind of segments, a value of it, an epoch and the index of an arm."""
Known = dict[str, dict[Kind, set[str]]]
"""The values of each kind of segments that are counted separately, by experiment."""


class SegmentTotal(msgspec.Struct):
    """Units and sums of segments: those in the tables, or those to be added."""

    units: dict[Place, tuple[int, int, int]] = {}
    """The number of units, those of them that got the whole treatment, and the number of their requests, by segment,
    epoch and arm."""
    sums: dict[tuple[Place, str], Sums] = {}
    """The sums of each metric, by segment, epoch and arm, and the metric's name."""

    def known(self, experiment_id: str) -> Known:
        """Return the segment values of an experiment that are counted separately, by kind."""
        found: Known = {experiment_id: {}}
        for each, kind, value, _, _ in self.units:
            if each == experiment_id and value != OTHER:
                found[experiment_id].setdefault(kind, set()).add(value)
        return found


def by_value(units: Mapping[Any, Any], sums: SumsOf, known: Known) -> SegmentTotal:
    """Return the totals of each single segment, from totals of units by all of their segments; zeros are left out."""
    total = SegmentTotal({}, {})
    for (experiment_id, (values, epoch, arm)), more in units.items():
        for kind, value in segments_of(values, known.get(experiment_id, {})):
            place = experiment_id, kind, value, epoch, arm
            had = total.units.get(place, NOTHING)
            total.units[place] = had[0] + more[0], had[1] + more[1], had[2] + more[2]
    for (experiment_id, (values, epoch, arm), metric), each in sums.items():
        for kind, value in segments_of(values, known.get(experiment_id, {})):
            key = (experiment_id, kind, value, epoch, arm), metric
            total.sums[key] = total.sums[key] + each if key in total.sums else each
    return SegmentTotal(
        {place: each for place, each in total.units.items() if each != NOTHING},
        {key: each for key, each in total.sums.items() if each != NO_UNITS},
    )


_KNOWN = """
    SELECT DISTINCT experiment_id, kind, value FROM experiment_segments
    WHERE experiment_id = ANY ($1::text[]) AND value <> $2
"""
_ADD_UNITS = """
    INSERT INTO experiment_segments AS d (
        experiment_id, kind, value, epoch, arm, num_units, num_delivered, num_requests)
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::smallint[], $5::smallint[], $6::bigint[],
                         $7::bigint[], $8::bigint[])
    ON CONFLICT (experiment_id, kind, value, epoch, arm) DO UPDATE SET
        num_units = d.num_units + excluded.num_units, num_delivered = d.num_delivered + excluded.num_delivered,
        num_requests = d.num_requests + excluded.num_requests
"""
_ADD_SUMS = """
    INSERT INTO experiment_segment_sums AS s (
        experiment_id, kind, value, epoch, arm, metric, n, y, yy, x, xx, xy, d, dd, yd)
    SELECT experiment_id, kind, value, epoch, arm, metric, n, y::numeric, yy::numeric, x::numeric, xx::numeric,
           xy::numeric, d::numeric, dd::numeric, yd::numeric
    FROM unnest($1::text[], $2::text[], $3::text[], $4::smallint[], $5::smallint[], $6::text[], $7::bigint[],
                $8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[], $15::text[])
        AS v (experiment_id, kind, value, epoch, arm, metric, n, y, yy, x, xx, xy, d, dd, yd)
    ON CONFLICT (experiment_id, kind, value, epoch, arm, metric) DO UPDATE SET
        n = s.n + excluded.n, y = s.y + excluded.y, yy = s.yy + excluded.yy, x = s.x + excluded.x,
        xx = s.xx + excluded.xx, xy = s.xy + excluded.xy, d = s.d + excluded.d, dd = s.dd + excluded.dd,
        yd = s.yd + excluded.yd
"""


async def add_segments(conn: Connection, units: UnitsOf, sums: SumsOf) -> None:
    """Add changes of units and sums to the tables of segments, in a transaction that has their lock."""
    experiment_ids = {each for each, *_ in units} | {each for each, *_ in sums}
    if not experiment_ids:
        return
    known: Known = {each: {} for each in experiment_ids}
    for experiment_id, kind, value in await conn.fetch(_KNOWN, list(experiment_ids), OTHER):
        known[experiment_id].setdefault(kind, set()).add(value)
    for each in experiment_ids:
        add_segment_values(known[each], sorted(_values(each, units)))
    total = by_value(units, sums, known)
    if total.units:
        rows = [(*place, *total.units[place]) for place in sorted(total.units)]
        await conn.execute(_ADD_UNITS, *zip(*rows, strict=True))
    if total.sums:
        values = [
            (*place, metric, one.n, *(str(value) for value in msgspec.structs.astuple(one)[1:]))
            for place, metric in sorted(total.sums)
            if (one := total.sums[place, metric])
        ]
        await conn.execute(_ADD_SUMS, *zip(*values, strict=True))


def _values(experiment_id: str, units: UnitsOf) -> Iterable[Values]:
    return {values for (own_id, (values, _, _)), each in units.items() if own_id == experiment_id and each[0] > 0}


_UNITS = """
    SELECT kind, value, epoch, arm, num_units, num_delivered FROM experiment_segments
    WHERE experiment_id = $1 AND ($2::text IS NULL OR kind = $2) ORDER BY kind, value, epoch, arm
"""


async def load_segment_units(conn: Connection, experiment_id: str, kind: Kind | None = None) -> list[SegmentUnits]:
    """Return the units of each segment of a kind, or of all kinds."""
    return [SegmentUnits(*row) for row in await conn.fetch(_UNITS, experiment_id, kind)]


_SUMS = """
    SELECT value, epoch, arm, metric, n, y, yy, x, xx, xy, d, dd, yd FROM experiment_segment_sums
    WHERE experiment_id = $1 AND kind = $2 AND metric = ANY ($3)
"""


async def load_segment_sums(
    conn: Connection, experiment_id: str, kind: Kind, metrics: Collection[str]
) -> dict[str, list[SumsRow]]:
    """Return the sums of some metrics by the value of a kind's segments."""
    found: dict[str, list[SumsRow]] = {}
    for value, epoch, arm, metric, *sums in await conn.fetch(_SUMS, experiment_id, kind, list(metrics)):
        found.setdefault(value, []).append(SumsRow(0, epoch, arm, metric, Sums(*sums)))
    return found


_KEY_NAMES = "SELECT id, name FROM api_keys WHERE project_id = $1 AND id = ANY ($2::text[])"


async def names_of_keys(conn: Connection, project_id: str, key_ids: Collection[str]) -> dict[str, str]:
    """Return the names of the keys, of the given ones, that the project has."""
    return {row["id"]: row["name"] for row in await conn.fetch(_KEY_NAMES, project_id, list(key_ids))}


_ALL_UNITS = """
    SELECT kind, value, epoch, arm, num_units, num_delivered, num_requests FROM experiment_segments
    WHERE experiment_id = $1
"""
_ALL_SUMS = """
    SELECT kind, value, epoch, arm, metric, n, y, yy, x, xx, xy, d, dd, yd FROM experiment_segment_sums
    WHERE experiment_id = $1
"""


async def load_segments(conn: Connection, experiment_id: str) -> SegmentTotal:
    """Return the segments in the tables of an experiment, to export them or to compare them with a recount."""
    total = SegmentTotal({}, {})
    for kind, value, epoch, arm, units, delivered, requests in await conn.fetch(_ALL_UNITS, experiment_id):
        total.units[experiment_id, kind, value, epoch, arm] = units, delivered, requests
    for kind, value, epoch, arm, metric, *sums in await conn.fetch(_ALL_SUMS, experiment_id):
        total.sums[(experiment_id, kind, value, epoch, arm), metric] = Sums(*sums)
    return total
