"""The numbers, ends and times of requests in buckets of time: from roll-ups alone.

Times are counted in buckets (see `time_bucket` in the schema), so that percentiles of any sum of rows are within a
tenth of the exact ones. Sums by API key come from `usage_rollups`, which count neither the ends of requests (stop,
length, errors) nor times.
"""

from __future__ import annotations

import datetime
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from gateway.db.ledger.usage_sums import Width

if TYPE_CHECKING:
    from gateway.db.pool import Connection

GROWTH = 1.21
NUM_BUCKETS = 64
TTFT_FLOOR_MS, TPOT_FLOOR_MS = 1.0, 0.1
_HEADER_BYTES, _ELEMENT_BYTES = 20, 8  # of an array of integers as PostgreSQL sends it

Level = Literal["organization", "project", "model", "full"]
Order = Literal["requests", "tokens", "cost", "errors"]


class Percentiles(msgspec.Struct, frozen=True):
    """Percentiles in milliseconds."""

    p50: float
    p90: float
    p99: float


class TrafficQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over buckets from start up to end. Empty lists do not filter."""

    organization_id: str
    width: Width
    start: datetime.datetime
    end: datetime.datetime
    project_ids: Sequence[str] | None
    """The projects; None: the whole organization."""
    models: Sequence[str] = ()
    adapter_ids: Sequence[str] = ()
    api_key_ids: Sequence[str] = ()
    group_by: Sequence[str] = ()
    """Names of fields of the sums."""
    whole: bool = False
    """True: all buckets are one, which begins at start."""
    with_times: bool = True
    """True: times are read as well, which costs more than all the rest."""

    @property
    def is_by_key(self) -> bool:
        """True if the query tells keys apart."""
        return bool(self.api_key_ids) or "api_key_id" in self.group_by

    @property
    def level(self) -> Level:
        """The level of the sums with the fewest rows that can answer this query."""
        by_project = self.project_ids is not None or "project_id" in self.group_by
        names = {"model", "adapter_id", "adapter_version"}
        if self.models or self.adapter_ids or names.intersection(self.group_by):
            return "full" if by_project else "model"
        return "project" if by_project else "organization"


class TrafficSum(msgspec.Struct, frozen=True, gc=False):
    """The requests of one group in one bucket.

    None stands for a field that group_by does not name, for a number that is not known by key, and for percentiles of
    nothing.
    """

    bucket: datetime.datetime
    """The first instant of the bucket."""
    project_id: str | None
    model: str | None
    adapter_id: str | None
    adapter_version: int | None
    api_key_id: str | None
    num_requests: int
    num_stop: int | None
    num_length: int | None
    num_cancelled: int | None
    num_errors: int | None
    num_refused: int | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost_nanos: int
    ttft_ms: Percentiles | None = None
    tpot_ms: Percentiles | None = None
    """The milliseconds per output token."""


# The first ($12) by an order ($11); without one, all in the order of their buckets. The first of the two alternatives
# leaves models and adapters to the indexes that begin with them. Times ($13) are of the very row: no join finds them
# sooner.
_SUMS = """
    SELECT CASE WHEN $9 THEN $4 ELSE r.bucket END AS bucket,
           CASE WHEN 'project_id' = ANY ($8) THEN r.project_id END AS project_id,
           CASE WHEN 'model' = ANY ($8) THEN r.model END AS model,
           CASE WHEN 'adapter_id' = ANY ($8) THEN nullif(r.adapter_id, '') END AS adapter_id,
           CASE WHEN 'adapter_version' = ANY ($8) THEN nullif(r.adapter_version, 0) END AS adapter_version,
           NULL AS api_key_id,
           sum(r.num_requests)::bigint, sum(r.num_stop)::bigint, sum(r.num_length)::bigint,
           sum(r.num_cancelled)::bigint, sum(r.num_errors)::bigint, sum(r.num_refused)::bigint,
           sum(r.prompt_tokens)::bigint, sum(r.cached_tokens)::bigint, sum(r.completion_tokens)::bigint,
           sum(r.cost_nanos),
           string_agg(array_send(t.ttft_counts), ''), string_agg(array_send(t.tpot_counts), '')
    FROM traffic_rollups r LEFT JOIN LATERAL (
        SELECT c.ttft_counts, c.tpot_counts FROM traffic_times c
        WHERE $13::boolean AND c.organization_id = $1 AND c.level = $2 AND c.width = $3 AND c.bucket = r.bucket
          AND c.project_id = r.project_id AND c.model = r.model AND c.adapter_id = r.adapter_id
          AND c.adapter_version = r.adapter_version
        OFFSET 0
    ) t ON true
    WHERE r.organization_id = $1 AND r.level = $2 AND r.width = $3 AND r.bucket >= $4 AND r.bucket < $5
      AND ($2 = 'model' AND ($7::text[] <> '{}' OR $10::text[] <> '{}')
           OR r.project_id = ANY (coalesce($6::text[], ARRAY(SELECT id FROM projects WHERE organization_id = $1))))
      AND ($7::text[] = '{}' OR r.model = ANY ($7)) AND ($10::text[] = '{}' OR r.adapter_id = ANY ($10))
    GROUP BY 1, 2, 3, 4, 5
    ORDER BY CASE $11::text WHEN 'requests' THEN sum(r.num_requests) WHEN 'cost' THEN sum(r.cost_nanos)
                  WHEN 'tokens' THEN sum(r.prompt_tokens) + sum(r.completion_tokens)
                  WHEN 'errors' THEN sum(r.num_errors) END DESC NULLS LAST, 1, 2, 3, 4, 5
    LIMIT $12
"""
_SUMS_BY_KEY = """
    SELECT CASE WHEN $8 THEN $3 ELSE r.bucket END AS bucket,
           CASE WHEN 'project_id' = ANY ($7) THEN r.project_id END AS project_id,
           CASE WHEN 'model' = ANY ($7) THEN r.model END AS model,
           CASE WHEN 'adapter_id' = ANY ($7) THEN nullif(r.adapter_id, '') END AS adapter_id,
           NULL::integer AS adapter_version,
           CASE WHEN 'api_key_id' = ANY ($7) THEN r.api_key_id END AS api_key_id,
           sum(r.num_requests)::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint,
           NULL::bigint,
           sum(r.prompt_tokens)::bigint, sum(r.cached_tokens)::bigint, sum(r.completion_tokens)::bigint,
           sum(r.input_cost_nanos + r.cached_cost_nanos + r.output_cost_nanos), NULL::bytea, NULL::bytea
    FROM usage_rollups r
    WHERE r.organization_id = $1 AND r.width = $2 AND r.bucket >= $3 AND r.bucket < $4 AND r.endpoint <> ''
      AND ($5::text[] IS NULL OR r.project_id = ANY ($5)) AND ($6::text[] = '{}' OR r.model = ANY ($6))
      AND ($9::text[] = '{}' OR r.adapter_id = ANY ($9)) AND ($10::text[] = '{}' OR r.api_key_id = ANY ($10))
    GROUP BY 1, 2, 3, 4, 6
    ORDER BY CASE $11::text WHEN 'requests' THEN sum(r.num_requests)
                  WHEN 'cost' THEN sum(r.input_cost_nanos + r.cached_cost_nanos + r.output_cost_nanos)
                  WHEN 'tokens' THEN sum(r.prompt_tokens) + sum(r.completion_tokens) END DESC NULLS LAST, 1, 2, 3, 4, 6
    LIMIT $12
"""


async def traffic_sums(conn: Connection, query: TrafficQuery, limit: int | None = None) -> list[TrafficSum]:
    """Return the sums in the order of their buckets, without buckets that had no traffic. limit: the most sums."""
    if query.is_by_key:
        rows = await conn.fetch(_SUMS_BY_KEY, *_by_key_values(query), None, limit)
    else:
        rows = await conn.fetch(_SUMS, *_query_values(query), None, limit, query.with_times)
    return [TrafficSum(*_values(tuple(row))) for row in rows]


async def busiest_groups(conn: Connection, query: TrafficQuery, order: Order, limit: int) -> list[TrafficSum]:
    """Return the first sums, in an order, of a query with `whole` that is grouped by one field.

    Times are read only for the returned groups, whose number is at most `limit`.
    """
    (name,) = query.group_by
    if query.is_by_key:
        rows = await conn.fetch(_SUMS_BY_KEY, *_by_key_values(query), order, limit)
        return [TrafficSum(*_values(tuple(row))) for row in rows]
    rows = await conn.fetch(_SUMS, *_query_values(query), order, limit, False)
    found = [TrafficSum(*_values(tuple(row))) for row in rows]
    if not found or not query.with_times:
        return found
    ids = [getattr(each, name) or "" for each in found]
    with_times = await traffic_sums(conn, msgspec.structs.replace(query, **{_LIST_OF[name]: ids}))
    return sorted(with_times, key=lambda each: ids.index(getattr(each, name) or ""))


_LIST_OF = {"project_id": "project_ids", "model": "models", "adapter_id": "adapter_ids"}


def _query_values(query: TrafficQuery) -> tuple[object, ...]:
    start, end, projects, *rest = _window(query)
    if query.level in ("organization", "model"):
        projects = [""]  # the id in rows that tell no projects apart
    return (query.organization_id, query.level, query.width, start, end, projects, *rest, list(query.adapter_ids))


def _by_key_values(query: TrafficQuery) -> tuple[object, ...]:
    lists = (list(query.adapter_ids), list(query.api_key_ids))
    return (query.organization_id, query.width, *_window(query), *lists)


def _window(query: TrafficQuery) -> tuple[object, ...]:
    projects = None if query.project_ids is None else list(query.project_ids)
    return (query.start, query.end, projects, list(query.models), list(query.group_by), query.whole)


def _values(row: tuple[Any, ...]) -> tuple[Any, ...]:
    *known, cost_nanos, ttft, tpot = row
    return (*known, int(cost_nanos), _ttft(ttft), _tpot(tpot))


def _ttft(sent: bytes | None) -> Percentiles | None:
    return percentiles(counts_of(sent), TTFT_FLOOR_MS) if sent else None


def _tpot(sent: bytes | None) -> Percentiles | None:
    return percentiles(counts_of(sent), TPOT_FLOOR_MS) if sent else None


def counts_of(sent: bytes) -> list[int]:
    """Return the sum of arrays of NUM_BUCKETS integers.

    sent: the arrays as PostgreSQL sends them, one after the other.
    """
    words = np.frombuffer(sent, dtype=">i4").reshape(-1, _HEADER_BYTES // 4 + NUM_BUCKETS * _ELEMENT_BYTES // 4)
    counts: list[int] = words[:, _HEADER_BYTES // 4 + 1 :: 2].sum(axis=0, dtype=np.int64).tolist()
    return counts


def percentiles(counts: Sequence[int], floor_ms: float) -> Percentiles | None:
    """Return each percentile as the middle of its bucket; None where there are no times.

    floor_ms: the lower edge of the first bucket; each further edge is `GROWTH` times the one before.
    """
    seen = list(accumulate(counts))
    total = seen[-1]
    if total == 0:
        return None
    places = (bisect_left(seen, total * part) for part in (0.5, 0.9, 0.99))
    return Percentiles(*(floor_ms * GROWTH ** (place + 0.5) for place in places))
