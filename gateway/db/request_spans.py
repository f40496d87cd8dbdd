"""Where the ledger holds what a list of requests asks for, told by the roll-ups of traffic: days first, then hours of
these, then minutes of those. However rare a request is, few rows are looked at for it.

Roll-ups tell no keys apart: of a key's requests those of its project are looked at.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from gateway.db.usage_sums import Width

if TYPE_CHECKING:
    from gateway.db.pool import Connection

MAX_LOOKED_AT = 20_000
"""Requests in the minutes of one page, unless one minute alone has more."""

OF_EACH_KEY = 20
"""Requests of a project that are looked at for one of a key's."""

Level = Literal["organization", "project", "model", "full"]
Span = tuple[datetime.datetime, datetime.datetime]
"""From the first up to the second."""

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_WIDTHS: dict[Width, datetime.timedelta] = {
    "day": datetime.timedelta(days=1),
    "hour": datetime.timedelta(hours=1),
    "minute": datetime.timedelta(minutes=1),
}


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """Empty lists do not filter; project_ids None: all of the organization."""

    organization_id: str
    project_ids: Sequence[str] | None = None
    models: Sequence[str] = ()
    adapter_ids: Sequence[str] = ()
    finish_reasons: Sequence[str] = ()

    @property
    def level(self) -> Level:
        """The fewest rows that can tell."""
        if self.models or self.adapter_ids:
            return "model" if self.project_ids is None else "full"
        return "organization" if self.project_ids is None else "project"


class Spans(msgspec.Struct, frozen=True):
    """Newest first. back_to: nothing before it was looked for; None where that was everything."""

    spans: list[Span]
    back_to: datetime.datetime | None


async def spans_with(
    conn: Connection, filters: Filters, start: datetime.datetime, until: datetime.datetime, num_needed: int
) -> Spans:
    """The newest minutes between two instants that hold so many requests, or all that hold any. They may hold a few
    more than they should: of a request whose end was corrected, and beyond the instants."""
    spans, back_to = [(start, until)], None
    for width, size in _WIDTHS.items():
        found, is_cut = await _newest(conn, filters, width, spans, num_needed)
        if is_cut:
            back_to = found[-1]
        spans = [(max(start, bucket), min(until, bucket + size)) for bucket in found]
    waiting = await conn.fetch(_WAITING, filters.organization_id, start, until)
    not_rolled_up = [
        (max(start, minute), min(until, minute + _WIDTHS["minute"]))
        for (minute,) in waiting
        if back_to is None or minute >= back_to
    ]
    newest_first = sorted({*spans, *not_rolled_up}, reverse=True)
    return await _of_bearable_size(conn, filters, Spans(newest_first, back_to))


_BUCKETS = """
    SELECT r.bucket, sum(n.num)::bigint AS num
    FROM unnest($4::timestamptz[], $5::timestamptz[]) AS s (since, until)
        CROSS JOIN LATERAL (
            SELECT * FROM traffic_rollups t
            WHERE t.organization_id = $1 AND t.level = $2 AND t.width = $3
              AND t.bucket >= s.since AND t.bucket < s.until
              AND ($2 = 'model' OR t.project_id = ANY ($6::text[]))
              AND ($7::text[] = '{}' OR t.model = ANY ($7)) AND ($8::text[] = '{}' OR t.adapter_id = ANY ($8))
        ) r
        CROSS JOIN LATERAL (
            SELECT CASE WHEN $9::text[] = '{}' THEN r.num_requests
                        ELSE CASE WHEN 'stop' = ANY ($9) THEN r.num_stop ELSE 0 END
                             + CASE WHEN 'length' = ANY ($9) THEN r.num_length ELSE 0 END
                             + CASE WHEN 'abort' = ANY ($9) THEN r.num_cancelled ELSE 0 END
                             + CASE WHEN 'error' = ANY ($9) THEN r.num_errors ELSE 0 END
                   END AS num
        ) n
    GROUP BY r.bucket HAVING sum(n.num) > 0 ORDER BY r.bucket DESC
"""


async def _newest(
    conn: Connection, filters: Filters, width: Width, spans: Sequence[Span], num_needed: int
) -> tuple[list[datetime.datetime], bool]:
    """Buckets within the spans, and whether there are more than these."""
    since = [_floor(span[0], _WIDTHS[width]) for span in spans]
    found: list[datetime.datetime] = []
    seen = 0
    rows = await conn.fetch(
        _BUCKETS,
        filters.organization_id,
        filters.level,
        width,
        since,
        [span[1] for span in spans],
        [""] if filters.project_ids is None else list(filters.project_ids),
        list(filters.models),
        list(filters.adapter_ids),
        list(filters.finish_reasons),
    )
    for bucket, num in rows:
        if seen >= num_needed:
            return found, True
        found.append(bucket)
        seen += num
    return found, False


def _floor(instant: datetime.datetime, size: datetime.timedelta) -> datetime.datetime:
    return _EPOCH + (instant - _EPOCH) // size * size


# What the roll-ups do not have yet; of a queue that is behind, its newest part.
_WAITING = """
    SELECT DISTINCT q.minute
    FROM (SELECT minute, organization_id FROM traffic_queue ORDER BY id DESC LIMIT 2000) q
    WHERE q.organization_id = $1 AND q.minute >= date_trunc('minute', $2::timestamptz, 'UTC') AND q.minute < $3
"""
_SIZES = """
    SELECT r.bucket, sum(r.num_requests)::bigint FROM traffic_rollups r
    WHERE r.organization_id = $1 AND r.level = $2 AND r.width = 'minute' AND r.project_id = ANY ($3::text[])
      AND r.bucket = ANY ($4::timestamptz[])
    GROUP BY 1
"""


async def _of_bearable_size(conn: Connection, filters: Filters, found: Spans) -> Spans:
    """As many of them as may be looked at for one page, and the newest in any case."""
    level = "organization" if filters.project_ids is None else "project"
    projects = [""] if filters.project_ids is None else list(filters.project_ids)
    minutes = [_floor(since, _WIDTHS["minute"]) for since, _ in found.spans]
    rows = await conn.fetch(_SIZES, filters.organization_id, level, projects, minutes)
    sizes: dict[datetime.datetime, int] = {row[0]: row[1] for row in rows}
    num_left = MAX_LOOKED_AT
    for number, minute in enumerate(minutes):
        num_left -= sizes.get(minute, 0)
        if num_left < 0 and number:
            return Spans(found.spans[:number], minutes[number - 1])
    return found
