"""Usage over HTTP, in OpenAI's shapes: tokens and requests in buckets of time.

Usage is read from roll-ups, which follow the ledger by a second or two. Tenants see the usage of their own projects.
"""

from __future__ import annotations

import datetime
from typing import Any, Literal

import msgspec
from litestar import Controller, Request, get

from gateway.admin.access import needs
from gateway.admin.billing.buckets import (
    COMMON,
    PERMISSION,
    WIDTHS,
    BucketPage,
    bucket_page,
    bucket_shape,
    list_params,
    read_buckets,
    sum_query,
)
from gateway.admin.services import Caller, Services
from gateway.db.ledger.usage_sums import UsageSum, usage_sums

EMBEDDING_GROUPS = ("project_id", "user_id", "api_key_id", "model")
COMPLETION_GROUPS = (*EMBEDDING_GROUPS, "batch", "service_tier")
LISTS = list_params("project_ids", "user_ids", "api_key_ids", "models", "group_by")


class CompletionsResult(msgspec.Struct, frozen=True, gc=False):
    """The usage of one group within a bucket of time. A field by which the usage is not grouped is null."""

    input_tokens: int
    input_cached_tokens: int
    input_uncached_tokens: int
    output_tokens: int
    num_model_requests: int
    cost_nanos: int
    """The cost in billionths of the currency, without adjustments."""
    project_id: str | None
    user_id: str | None
    api_key_id: str | None
    model: str | None
    batch: bool | None
    service_tier: str | None
    """The tier `shadow` is that of copies for shadow arms of experiments."""
    object: Literal["organization.usage.completions.result"] = "organization.usage.completions.result"


class EmbeddingsResult(msgspec.Struct, frozen=True, gc=False):
    """The usage of one group within a bucket of time. A field by which the usage is not grouped is null."""

    input_tokens: int
    num_model_requests: int
    project_id: str | None
    user_id: str | None
    api_key_id: str | None
    model: str | None
    object: Literal["organization.usage.embeddings.result"] = "organization.usage.embeddings.result"


class UsageController(Controller):
    """Endpoints for the usage of projects by bucket of time."""

    path = "/usage"

    @get(
        "/completions",
        opt=needs(PERMISSION, query=(*COMMON, *LISTS, "batch"), in_any_project=True)
        | bucket_shape(WIDTHS, COMPLETION_GROUPS),
    )
    async def completions_usage(
        self, request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> BucketPage[CompletionsResult]:
        """Return the tokens of chat and text completions by bucket of time."""
        buckets = read_buckets(request.query_params, WIDTHS, datetime.datetime.now(datetime.UTC))
        query = sum_query(request.query_params, buckets, caller, COMPLETION_GROUPS)
        async with services.reports.connection(caller.id) as conn:
            sums = await usage_sums(conn, query, embeddings=False)
        return bucket_page(buckets, sums, _completions)

    @get(
        "/embeddings",
        opt=needs(PERMISSION, query=(*COMMON, *LISTS), in_any_project=True) | bucket_shape(WIDTHS, EMBEDDING_GROUPS),
    )
    async def embeddings_usage(
        self, request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> BucketPage[EmbeddingsResult]:
        """Return the tokens of embeddings by bucket of time."""
        buckets = read_buckets(request.query_params, WIDTHS, datetime.datetime.now(datetime.UTC))
        query = sum_query(request.query_params, buckets, caller, EMBEDDING_GROUPS)
        async with services.reports.connection(caller.id) as conn:
            sums = await usage_sums(conn, query, embeddings=True)
        return bucket_page(buckets, sums, _embeddings)


def _completions(each: UsageSum) -> CompletionsResult:
    return CompletionsResult(
        each.prompt_tokens,
        each.cached_tokens,
        each.prompt_tokens - each.cached_tokens,
        each.completion_tokens,
        each.num_requests,
        each.cost_nanos,
        each.project_id,
        each.user_id,
        each.api_key_id,
        each.model,
        each.batch,
        each.service_tier,
    )


def _embeddings(each: UsageSum) -> EmbeddingsResult:
    return EmbeddingsResult(
        each.prompt_tokens, each.num_requests, each.project_id, each.user_id, each.api_key_id, each.model
    )
