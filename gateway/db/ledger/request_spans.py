"""Finds the spans of the ledger that hold the requests of a list, by the roll-ups of traffic.

Days are looked at first, then hours of these, then minutes of those, with their projects. However rare a request is,
few rows are read for it. Roll-ups tell no keys apart: for a key's requests those of its project are read.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Literal

import msgspec

from gateway.db.ledger.usage_sums import Width

if TYPE_CHECKING:
    from gateway.db.pool import Connection

MAX_LOOKED_AT = 20_000
"""The most requests in the minutes of one page, unless one minute alone has more."""

Level = Literal["organization", "project", "model", "full"]
Span = tuple[datetime.datetime, datetime.datetime]
"""A span of minutes: from the first up to, and without, the second."""

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_WIDTHS: dict[Width, datetime.timedelta] = {
    "day": datetime.timedelta(days=1),
    "hour": datetime.timedelta(hours=1),
    "minute": datetime.timedelta(minutes=1),
}


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """The filters of a list of requests. Empty lists do not filter."""

    organization_id: str
    project_ids: Sequence[str] | None = None
    """The projects; None: all of the organization."""
    models: Sequence[str] = ()
    adapter_ids: Sequence[str] = ()
    finish_reasons: Sequence[str] = ()

    @property
    def level(self) -> Level:
        """The level of the sums with the fewest rows that can answer these filters."""
        if self.models or self.adapter_ids:
            return "model" if self.project_ids is None else "full"
        return "organization" if self.project_ids is None else "project"


class Piece(msgspec.Struct, frozen=True, order=True):
    """Requests of a project, or of the whole organization where it is "", from an instant up to another one."""

    since: datetime.datetime
    until: datetime.datetime
    project_id: str


class Pieces(msgspec.Struct, frozen=True):
    """The pieces of a page, newest first."""

    pieces: list[Piece]
    back_to: datetime.datetime | None
    """The earliest instant that was searched; None if all of the time asked for was."""


async def pieces_with(
    conn: Connection, filters: Filters, start: datetime.datetime, until: datetime.datetime, num_needed: int
) -> Pieces:
    """Return the newest minutes between two instants that together hold `num_needed` matching requests, by project.

    They are all minutes with such requests where there are fewer requests, and fewer minutes where more than
    MAX_LOOKED_AT requests would have to be read. A project without matching requests in a minute has no piece of it.
    """
    # Read first: rows that are rolled up between the two queries are in both answers rather than in none.
    waiting = await conn.fetch(_WAITING, filters.organization_id, start, until, *_names(filters))
    spans, back_to = [(start, until)], None
    minutes: list[datetime.datetime] = []
    for width, size in _WIDTHS.items():
        minutes, is_cut = await _newest(conn, filters, width, spans, num_needed)
        if is_cut:
            back_to = minutes[-1]
        spans = [(max(start, bucket), min(until, bucket + size)) for bucket in minutes]
    pairs, is_cut = await _projects_of(conn, filters, minutes, num_needed)
    if is_cut:
        back_to = min(minute for minute, _ in pairs)
    pairs.update((minute, project_id) for minute, project_id in waiting if back_to is None or minute >= back_to)
    pieces = [
        Piece(max(start, minute), min(until, minute + _WIDTHS["minute"]), project_id)
        for minute, project_id in pairs
        if not project_id or (minute, "") not in pairs
    ]
    return Pieces(sorted(pieces, reverse=True), back_to)


_BUCKETS = """
    SELECT r.bucket, sum(r.num)::bigint AS num
    FROM unnest($7::timestamptz[], $8::timestamptz[]) AS s (since, until)
        CROSS JOIN LATERAL (
            SELECT t.bucket, num_ended(t, $6::text[]) AS num FROM traffic_rollups t
            WHERE t.organization_id = $1 AND t.level = $2 AND t.width = $9
              AND t.bucket >= s.since AND t.bucket < s.until
              AND ($2 = 'model' OR t.project_id = ANY (coalesce($3::text[], '{""}')))
              AND ($4::text[] = '{}' OR t.model = ANY ($4)) AND ($5::text[] = '{}' OR t.adapter_id = ANY ($5))
        ) r
    GROUP BY r.bucket HAVING sum(r.num) > 0 ORDER BY r.bucket DESC
"""


async def _newest(
    conn: Connection, filters: Filters, width: Width, spans: Sequence[Span], num_needed: int
) -> tuple[list[datetime.datetime], bool]:
    """Return the newest buckets within the spans, and whether there are more than these."""
    since = [_floor(span[0], _WIDTHS[width]) for span in spans]
    until = [span[1] for span in spans]
    found: list[datetime.datetime] = []
    seen = 0
    asked = (filters.organization_id, filters.level, *_names(filters), list(filters.finish_reasons))
    for bucket, num in await conn.fetch(_BUCKETS, *asked, since, until, width):
        if seen >= num_needed:
            return found, True
        found.append(bucket)
        seen += num
    return found, False


def _names(filters: Filters) -> tuple[list[str] | None, list[str], list[str]]:
    projects = None if filters.project_ids is None else list(filters.project_ids)
    return projects, list(filters.models), list(filters.adapter_ids)


def _floor(instant: datetime.datetime, size: datetime.timedelta) -> datetime.datetime:
    return _EPOCH + (instant - _EPOCH) // size * size


# num_beside: with those that the filters leave out.
_PROJECTS_OF = """
    SELECT r.bucket, r.project_id, sum(n.num)::bigint AS num, sum(r.num_requests)::bigint AS num_beside
    FROM traffic_rollups r CROSS JOIN LATERAL (
        SELECT CASE WHEN ($4::text[] = '{}' OR r.model = ANY ($4)) AND ($5::text[] = '{}' OR r.adapter_id = ANY ($5))
                    THEN num_ended(r, $6::text[]) ELSE 0 END AS num
    ) n
    WHERE r.organization_id = $1 AND r.level = $2 AND r.width = 'minute' AND r.bucket = ANY ($7::timestamptz[])
      AND ($3::text[] IS NULL OR r.project_id = ANY ($3))
    GROUP BY 1, 2 HAVING sum(n.num) > 0
    ORDER BY 1 DESC
"""
_SIZES = """
    SELECT r.bucket, r.num_requests FROM traffic_rollups r
    WHERE r.organization_id = $1 AND r.level = 'organization' AND r.width = 'minute' AND r.project_id = ''
      AND r.bucket = ANY ($2::timestamptz[])
"""
# The rows that the roll-ups do not have yet; of a queue that is behind, its newest part.
_WAITING = """
    SELECT DISTINCT q.minute, q.project_id
    FROM (
        SELECT minute, kind, organization_id, project_id, model, adapter_id FROM rollup_queue
        ORDER BY id DESC LIMIT 2000
    ) q
    WHERE q.organization_id = $1 AND q.kind = 'usage'
      AND q.minute >= date_trunc('minute', $2::timestamptz, 'UTC') AND q.minute < $3
      AND ($4::text[] IS NULL OR q.project_id = ANY ($4)) AND ($5::text[] = '{}' OR q.model = ANY ($5))
      AND ($6::text[] = '{}' OR coalesce(q.adapter_id, '') = ANY ($6))
"""


async def _projects_of(
    conn: Connection, filters: Filters, minutes: list[datetime.datetime], num_needed: int
) -> tuple[set[tuple[datetime.datetime, str]], bool]:
    """Return pairs of a minute and a project with requests in it, and whether some minutes were left out.

    The newest minutes with MAX_LOOKED_AT requests in all are looked at, the newest one in any case. The project is ""
    for the whole organization, where so many of a minute's requests match that reading all projects together is faster.
    """
    level = "full" if filters.models or filters.adapter_ids else "project"
    asked = (filters.organization_id, level, *_names(filters), list(filters.finish_reasons), minutes)
    rows = await conn.fetch(_PROJECTS_OF, *asked)
    sizes: dict[datetime.datetime, int] = {}
    if filters.project_ids is None:
        sizes = dict(tuple(row) for row in await conn.fetch(_SIZES, filters.organization_id, minutes))
    num, num_beside = (sum(row[name] for row in rows) for name in ("num", "num_beside"))
    is_for_everybody = filters.project_ids is None and num_needed * sum(sizes.values()) < num * num_beside
    pairs: set[tuple[datetime.datetime, str]] = set()
    num_left = MAX_LOOKED_AT
    for minute, group in groupby(rows, lambda row: row["bucket"]):
        by_project = {row["project_id"]: row["num_beside"] for row in group}
        num_left -= sizes.get(minute, 0) if is_for_everybody else sum(by_project.values())
        if num_left < 0 and pairs:
            return pairs, True
        pairs.update((minute, project_id) for project_id in ([""] if is_for_everybody else by_project))
    return pairs, False
