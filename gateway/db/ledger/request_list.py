"""The list of requests, newest first.

A query looks at a window of time, and within it at a bounded number of the ledger's rows for each page, along an index.
With filters, the roll-ups tell which minutes hold matching requests, and only these minutes are read: rare requests are
found at the same cost as frequent ones.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING

import asyncpg
import msgspec

from gateway.db.ledger.request_spans import Filters, Piece, Pieces, pieces_with
from gateway.db.ledger.requests import RequestPlace, RequestRow, whole_requests

if TYPE_CHECKING:
    from gateway.db.pool import Connection

OF_EACH_KEY = (4, 20)
"""The number of a project's requests that are read for each wanted request of one key.

More are read if those are too few: roll-ups do not tell keys apart.
"""


class RequestKey(msgspec.Struct, frozen=True):
    """The place of a request in the order of all."""

    created_at: datetime.datetime
    request_id: str


class RequestQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of a page: created from start up to end, and after `after` in the order of the list.

    Empty lists do not filter.

    With project_ids no row of another project is read, so that neither the end nor the length of a page reveals
    anything about other projects.
    """

    organization_id: str
    start: datetime.datetime
    end: datetime.datetime
    after: RequestKey | None
    limit: int
    project_ids: Sequence[str] | None = None
    """The projects; None: the whole organization."""
    models: Sequence[str] = ()
    api_key_ids: Sequence[str] = ()
    adapter_ids: Sequence[str] = ()
    finish_reasons: Sequence[str] = ()
    """Finish reasons as the last record of a request's last attempt has them, which is the one that is shown."""

    @property
    def is_filtered(self) -> bool:
        """True if the query asks for some of the requests only."""
        return any((self.models, self.api_key_ids, self.adapter_ids, self.finish_reasons))


class RequestsFound(msgspec.Struct, frozen=True):
    """A page of requests."""

    rows: list[RequestRow]
    next_key: RequestKey | None
    """The key after which the next page begins; None where there is none."""


# A row is billed in the month in which it was created or, where that was closed, in a later one: by their index, each
# month's rows come in their order.
_OF_ORGANIZATION = """
    WITH seen AS MATERIALIZED (
        SELECT c.*
        FROM generate_series(month_of($2), month_of(now()), interval '1 month') AS m (period)
            CROSS JOIN LATERAL (
                SELECT l.request_id, l.created_at, l.project_id,
                       l.attempt = 0 AND counts_as_request(l.kind, l.revision, l.request_id) AS is_request
                FROM ledger l
                WHERE l.organization_id = $1 AND l.period = m.period::date AND l.created_at >= $2
                  AND l.created_at < $3 AND l.created_at <= $4 AND (l.created_at, l.request_id) < ($4, $5)
                ORDER BY l.created_at DESC, l.request_id DESC LIMIT $6
            ) c
        ORDER BY c.created_at DESC, c.request_id DESC LIMIT $6
    ), found AS (
        SELECT s.created_at, s.request_id, s.project_id FROM seen s
        WHERE s.is_request
        ORDER BY s.created_at DESC, s.request_id DESC LIMIT $7
    )
    SELECT f.created_at, f.request_id, f.project_id, e.is_cut, e.last_at, e.last_id
    FROM (
        SELECT (SELECT count(*) FROM seen) = $6 AS is_cut, o.created_at AS last_at, o.request_id AS last_id
        FROM seen o ORDER BY o.created_at, o.request_id LIMIT 1
    ) e LEFT JOIN found f ON true
    ORDER BY f.created_at DESC, f.request_id DESC
"""
# A row that is older than the last one read of some project may have newer ones beside it: it is for a next page.
_OF_PROJECTS = """
    WITH looked_at AS MATERIALIZED (
        SELECT c.*, row_number() OVER (PARTITION BY c.project_id ORDER BY c.created_at DESC, c.request_id DESC) AS place
        FROM unnest($8::text[]) AS p (id)
        CROSS JOIN LATERAL (
            SELECT l.request_id, l.created_at, l.project_id,
                   l.attempt = 0 AND counts_as_request(l.kind, l.revision, l.request_id) AS is_request
            FROM ledger l
            WHERE l.project_id = p.id AND l.organization_id = $1 AND l.created_at >= $2 AND l.created_at < $3
              AND l.created_at <= $4 AND (l.created_at, l.request_id) < ($4, $5)
            ORDER BY l.created_at DESC, l.request_id DESC LIMIT $6
        ) c
    ), border AS (
        SELECT created_at, request_id FROM looked_at WHERE place = $6
        ORDER BY created_at DESC, request_id DESC LIMIT 1
    ), seen AS MATERIALIZED (
        SELECT a.* FROM looked_at a LEFT JOIN border b ON true
        WHERE b.request_id IS NULL OR (a.created_at, a.request_id) >= (b.created_at, b.request_id)
    ), found AS (
        SELECT s.created_at, s.request_id, s.project_id FROM seen s
        WHERE s.is_request
        ORDER BY s.created_at DESC, s.request_id DESC LIMIT $7
    )
    SELECT f.created_at, f.request_id, f.project_id, e.is_cut, e.last_at, e.last_id
    FROM (
        SELECT EXISTS (SELECT FROM border) AS is_cut, o.created_at AS last_at, o.request_id AS last_id
        FROM seen o ORDER BY o.created_at, o.request_id LIMIT 1
    ) e LEFT JOIN found f ON true
    ORDER BY f.created_at DESC, f.request_id DESC
"""

# Newest first, of each piece as many as a page takes. Only a request that ended in an error may have ended otherwise
# after all: at another attempt, or by a better count that came late.
_FITTING = """
    SELECT c.created_at, c.request_id, c.project_id
    FROM unnest($2::timestamptz[], $3::timestamptz[], $4::text[]) AS p (since, until, project_id) CROSS JOIN LATERAL (
        SELECT l.created_at, l.request_id, l.project_id FROM ledger l
        WHERE l.organization_id = $1 AND l.project_id = p.project_id
          AND l.created_at >= p.since AND l.created_at < p.until
          AND l.created_at <= $5 AND (l.created_at, l.request_id) < ($5, $6)
          AND l.attempt = 0 AND counts_as_request(l.kind, l.revision, l.request_id)
          AND ($8::text[] = '{}' OR l.model = ANY ($8)) AND ($9::text[] = '{}' OR l.adapter_id = ANY ($9))
          AND ($11::text[] = '{}' OR l.api_key_id = ANY ($11))
          AND ($10::text[] = '{}' OR CASE WHEN l.finish_reason NOT IN ('error', 'superseded')
              THEN l.finish_reason ELSE (
              SELECT e.finish_reason FROM ledger e
              WHERE e.organization_id = $1 AND e.request_id = l.request_id AND e.created_at = l.created_at
                AND e.kind = 'usage'
              ORDER BY e.attempt DESC, e.revision DESC LIMIT 1
          ) END = ANY ($10))
        ORDER BY l.created_at DESC, l.request_id DESC LIMIT $7
    ) c
    ORDER BY 1 DESC, 2 DESC LIMIT $7
"""
_FITTING_OF_ALL = """
    SELECT c.created_at, c.request_id, c.project_id
    FROM unnest($2::timestamptz[], $3::timestamptz[]) AS p (since, until)
    CROSS JOIN LATERAL generate_series(month_of(p.since), month_of(now()), interval '1 month') AS m (period)
    CROSS JOIN LATERAL (
        SELECT l.created_at, l.request_id, l.project_id FROM ledger l
        WHERE l.organization_id = $1 AND l.period = m.period::date
          AND l.created_at >= p.since AND l.created_at < p.until
          AND l.created_at <= $4 AND (l.created_at, l.request_id) < ($4, $5)
          AND l.attempt = 0 AND counts_as_request(l.kind, l.revision, l.request_id)
          AND ($7::text[] = '{}' OR l.model = ANY ($7)) AND ($8::text[] = '{}' OR l.adapter_id = ANY ($8))
          AND ($10::text[] = '{}' OR l.api_key_id = ANY ($10))
          AND ($9::text[] = '{}' OR CASE WHEN l.finish_reason NOT IN ('error', 'superseded')
              THEN l.finish_reason ELSE (
              SELECT e.finish_reason FROM ledger e
              WHERE e.organization_id = $1 AND e.request_id = l.request_id AND e.created_at = l.created_at
                AND e.kind = 'usage'
              ORDER BY e.attempt DESC, e.revision DESC LIMIT 1
          ) END = ANY ($9))
        ORDER BY l.created_at DESC, l.request_id DESC LIMIT $6
    ) c
    ORDER BY 1 DESC, 2 DESC LIMIT $6
"""


async def list_requests(conn: Connection, query: RequestQuery, *, scan_limit: int | None = None) -> RequestsFound:
    """Return requests, newest first.

    A page may have fewer rows than the limit and a next key: the scan was cut off there. scan_limit: rows of the ledger
    to look at without filters, of each project where projects are named.
    """
    if query.is_filtered:
        places, next_key = await _list_filtered(conn, await _with_projects_of_keys(conn, query))
    else:
        places, next_key = await _list_unfiltered(conn, query, scan_limit or 4 * query.limit)
    if len(places) > query.limit:
        places = places[: query.limit]
        next_key = RequestKey(places[-1].created_at, places[-1].request_id)
    return RequestsFound(await whole_requests(conn, query.organization_id, places), next_key)


async def _list_unfiltered(
    conn: Connection, query: RequestQuery, scan_limit: int
) -> tuple[list[RequestPlace], RequestKey | None]:
    """Return places, up to one more than the limit, and the key after which the next page begins.

    The key is None unless the scan was cut off at its limit.
    """
    after = query.after or RequestKey(query.end, "")
    window = (query.organization_id, query.start, query.end, after.created_at, after.request_id)
    limits = (scan_limit, query.limit + 1)
    if query.project_ids is None:
        rows = await conn.fetch(_OF_ORGANIZATION, *window, *limits)
    else:
        rows = await conn.fetch(_OF_PROJECTS, *window, *limits, list(query.project_ids))
    places = [_place(row) for row in rows if row["request_id"] is not None]
    is_cut = bool(rows) and rows[0]["is_cut"]
    return places, RequestKey(rows[0]["last_at"], rows[0]["last_id"]) if is_cut else None


async def _list_filtered(conn: Connection, query: RequestQuery) -> tuple[list[RequestPlace], RequestKey | None]:
    """Return places of requests that match the filters, up to one more than the limit, and the next page's key.

    The key is None where no request is left to look at.
    """
    after = query.after or RequestKey(query.end, "")
    # Requests of the same instant come before `after` where it has an id; no key is before one without.
    until = min(query.end, after.created_at + datetime.timedelta(microseconds=1 if after.request_id else 0))
    filters = Filters(
        organization_id=query.organization_id,
        project_ids=query.project_ids,
        models=query.models,
        adapter_ids=query.adapter_ids,
        finish_reasons=query.finish_reasons,
    )
    places: list[RequestPlace] = []
    next_key = None
    for factor in OF_EACH_KEY if query.api_key_ids else (1,):
        found_in = await pieces_with(conn, filters, query.start, until, factor * (query.limit + 1))
        places = await _filtered_within(conn, query, after, found_in)
        next_key = None if found_in.back_to is None else RequestKey(found_in.back_to, "")
        if len(places) > query.limit or next_key is None:
            break
    return places, next_key


async def _filtered_within(
    conn: Connection, query: RequestQuery, after: RequestKey, found_in: Pieces
) -> list[RequestPlace]:
    """Return the requests within the pieces `found_in` that match the query, up to one more than the limit."""
    lists = (query.models, query.adapter_ids, query.finish_reasons, query.api_key_ids)
    fits = (after.created_at, after.request_id, query.limit + 1, *map(list, lists))
    of_all = [piece for piece in found_in.pieces if not piece.project_id]
    of_one = [piece for piece in found_in.pieces if piece.project_id]
    rows: list[asyncpg.Record] = []
    if of_all:
        since, until, _ = _columns(of_all)
        rows += await conn.fetch(_FITTING_OF_ALL, query.organization_id, since, until, *fits)
    if of_one:
        rows += await conn.fetch(_FITTING, query.organization_id, *_columns(of_one), *fits)
    places = [_place(row) for row in rows]
    places.sort(key=lambda place: (place.created_at, place.request_id), reverse=True)
    return places[: query.limit + 1]


def _columns(pieces: list[Piece]) -> list[list[object]]:
    """Return the fields of rows as lists."""
    return [list(column) for column in zip(*map(msgspec.structs.astuple, pieces), strict=True)]


def _place(row: asyncpg.Record) -> RequestPlace:
    return RequestPlace(row["request_id"], row["project_id"], row["created_at"])


_PROJECTS_OF_KEYS = "SELECT id, project_id FROM api_keys WHERE organization_id = $1 AND id = ANY ($2::text[])"


async def _with_projects_of_keys(conn: Connection, query: RequestQuery) -> RequestQuery:
    """Narrow the query to the projects whose keys are asked for, where all of these keys are known."""
    if not query.api_key_ids:
        return query
    rows = await conn.fetch(_PROJECTS_OF_KEYS, query.organization_id, list(query.api_key_ids))
    projects: dict[str, str | None] = {row["id"]: row["project_id"] for row in rows}
    if projects.keys() != set(query.api_key_ids):
        return query
    wanted = [
        each for each in dict.fromkeys(projects.values()) if query.project_ids is None or each in query.project_ids
    ]
    return msgspec.structs.replace(query, project_ids=wanted)
