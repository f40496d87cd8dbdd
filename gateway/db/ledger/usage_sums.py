"""Sums of usage and cost in buckets of time, read from the roll-ups alone.

The roll-ups lag behind the ledger by a second or two; no query here touches the ledger itself.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from gateway.db.pool import Connection

Width = Literal["minute", "hour", "day"]


class SumQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over buckets from start up to end. Empty lists do not filter."""

    organization_id: str
    width: Width
    start: datetime.datetime
    end: datetime.datetime
    project_ids: Sequence[str] | None
    """The projects; None: the whole organization."""
    api_key_ids: Sequence[str] = ()
    user_ids: Sequence[str] = ()
    models: Sequence[str] = ()
    batch: bool | None = None
    """True: the usage of batches alone; False: all other usage alone; None: both."""
    group_by: Sequence[str] = ()
    """Names of fields of the sums; all other fields are None there."""


class UsageSum(msgspec.Struct, frozen=True, gc=False):
    """The sums of one bucket of time and one group; fields by which the sums are not grouped are None."""

    bucket: datetime.datetime
    """The first instant of the bucket."""
    project_id: str | None
    user_id: str | None
    api_key_id: str | None
    model: str | None
    batch: bool | None
    service_tier: str | None
    num_requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost_nanos: int
    """The cost without adjustments."""


_USAGE = """
    SELECT r.bucket,
           CASE WHEN 'project_id' = ANY ($10) THEN r.project_id END AS project_id,
           CASE WHEN 'user_id' = ANY ($10) THEN
               (SELECT k.owner_user_id FROM api_keys k WHERE k.id = r.api_key_id) END AS user_id,
           CASE WHEN 'api_key_id' = ANY ($10) THEN r.api_key_id END AS api_key_id,
           CASE WHEN 'model' = ANY ($10) THEN r.model END AS model,
           CASE WHEN 'batch' = ANY ($10) THEN r.service_tier = 'batch' END AS batch,
           CASE WHEN 'service_tier' = ANY ($10) THEN r.service_tier END AS service_tier,
           sum(r.num_requests)::bigint AS num_requests, sum(r.prompt_tokens)::bigint AS prompt_tokens,
           sum(r.cached_tokens)::bigint AS cached_tokens, sum(r.completion_tokens)::bigint AS completion_tokens,
           sum(r.input_cost_nanos + r.cached_cost_nanos + r.output_cost_nanos) AS cost_nanos
    FROM usage_rollups r
    WHERE r.organization_id = $1 AND r.width = $2 AND r.bucket >= $3 AND r.bucket < $4
      AND ($5::text[] IS NULL OR r.project_id = ANY ($5))
      AND ($6::text[] = '{}' OR r.api_key_id = ANY ($6))
      AND ($7::text[] = '{}' OR r.api_key_id IN (SELECT id FROM api_keys WHERE owner_user_id = ANY ($7)))
      AND ($8::text[] = '{}' OR r.model = ANY ($8))
      AND ($9::boolean IS NULL OR (r.service_tier = 'batch') = $9)
      AND r.endpoint <> '' AND (r.endpoint IN ('/v1/embeddings', '/v1/rerank')) = $11
    GROUP BY 1, 2, 3, 4, 5, 6, 7 ORDER BY 1, 2, 3, 4, 5, 6, 7
"""


async def usage_sums(conn: Connection, query: SumQuery, *, embeddings: bool) -> list[UsageSum]:
    """Return sums of the usage of embeddings and reranking, or of all else, by bucket; empty ones are left out."""
    rows = await conn.fetch(_USAGE, *_filters(query), embeddings)
    return [UsageSum(*row) for row in rows]


class CostSum(msgspec.Struct, frozen=True, gc=False):
    """The cost of one line item in one bucket."""

    bucket: datetime.datetime
    """The first instant of the bucket."""
    project_id: str | None
    api_key_id: str | None
    line_item: str | None
    """The model and the kind of tokens, such as `support, output`; None where sums are not grouped by it."""
    cost_nanos: int
    quantity: int | None
    """Tokens of the line item; None for adjustments and where items are not told apart."""


_COSTS = """
    SELECT s.bucket, s.project_id, s.api_key_id,
           CASE WHEN i.kind IS NULL THEN NULL WHEN i.kind = 'adjustments' THEN i.kind
                ELSE s.model || ', ' || i.kind END AS line_item,
           sum(i.cost) AS cost_nanos, sum(i.tokens)::bigint AS quantity
    FROM (
        SELECT r.bucket,
               CASE WHEN 'project_id' = ANY ($10) THEN r.project_id END AS project_id,
               CASE WHEN 'api_key_id' = ANY ($10) THEN r.api_key_id END AS api_key_id,
               CASE WHEN 'line_item' = ANY ($10) THEN r.model END AS model,
               sum(r.prompt_tokens - r.cached_tokens) AS uncached, sum(r.cached_tokens) AS cached,
               sum(r.completion_tokens) AS completion, sum(r.input_cost_nanos) AS input_cost,
               sum(r.cached_cost_nanos) AS cached_cost, sum(r.output_cost_nanos) AS output_cost,
               sum(r.cost_nanos) AS cost
        FROM usage_rollups r
        WHERE r.organization_id = $1 AND r.width = $2 AND r.bucket >= $3 AND r.bucket < $4
          AND ($5::text[] IS NULL OR r.project_id = ANY ($5))
          AND ($6::text[] = '{}' OR r.api_key_id = ANY ($6))
          AND ($7::text[] = '{}' OR r.api_key_id IN (SELECT id FROM api_keys WHERE owner_user_id = ANY ($7)))
          AND ($8::text[] = '{}' OR r.model = ANY ($8))
          AND ($9::boolean IS NULL OR (r.service_tier = 'batch') = $9)
        GROUP BY 1, 2, 3, 4
    ) s CROSS JOIN LATERAL (VALUES
        (NULL, s.cost, NULL),
        ('input', s.input_cost, s.uncached),
        ('cached input', s.cached_cost, s.cached),
        ('output', s.output_cost, s.completion),
        ('adjustments', s.cost - s.input_cost - s.cached_cost - s.output_cost, NULL)
    ) AS i (kind, cost, tokens)
    WHERE ('line_item' = ANY ($10)) = (i.kind IS NOT NULL) AND (i.kind IS NULL OR i.cost <> 0 OR i.tokens <> 0)
    GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
"""


async def cost_sums(conn: Connection, query: SumQuery) -> list[CostSum]:
    """Return the sums of cost, adjustments included on the day on which they were made."""
    return [CostSum(*row) for row in await conn.fetch(_COSTS, *_filters(query))]


def _filters(query: SumQuery) -> tuple[object, ...]:
    lists = (query.api_key_ids, query.user_ids, query.models)
    projects = None if query.project_ids is None else list(query.project_ids)
    return (
        query.organization_id,
        query.width,
        query.start,
        query.end,
        projects,
        *map(list, lists),
        query.batch,
        list(query.group_by),
    )
