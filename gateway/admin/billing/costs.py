"""Costs over HTTP, in OpenAI's shapes: by day, with line items of model and kind of tokens."""

from __future__ import annotations

import datetime
from typing import Any, Literal

import msgspec
from litestar import Controller, Request, get

from gateway.admin.access import needs
from gateway.admin.billing.buckets import (
    COMMON,
    PERMISSION,
    Bounds,
    BucketPage,
    bucket_page,
    bucket_shape,
    list_params,
    read_buckets,
    sum_query,
)
from gateway.admin.services import Caller, Services
from gateway.db.billing.prices import currency_of
from gateway.db.ledger.usage_sums import CostSum, cost_sums
from gateway.domain.billing.money import to_number

WIDTHS = {"1d": Bounds("day", 86_400, 7, 180)}
GROUPS = ("project_id", "line_item", "api_key_id")
LISTS = list_params("project_ids", "api_key_ids", "group_by")


class Amount(msgspec.Struct, frozen=True):
    """An amount of money."""

    value: float
    """The amount as a JSON number, as in OpenAI's API."""
    currency: str
    """The currency as a code of three lower-case letters."""
    value_nanos: int
    """The exact amount in billionths of the currency."""


class CostsResult(msgspec.Struct, frozen=True):
    """The cost of one group within a bucket of time."""

    amount: Amount
    line_item: str | None
    """The model and the kind of tokens, such as `support, output`; null where costs are not grouped by it."""
    project_id: str | None
    api_key_id: str | None
    quantity: int | None
    """The number of tokens of the line item; null for adjustments, and where costs are not grouped by line item."""
    quantity_unit: Literal["tokens"] | None
    object: Literal["organization.costs.result"] = "organization.costs.result"


class CostController(Controller):
    """The endpoint for the costs of projects by bucket of time."""

    path = "/costs"

    @get(opt=needs(PERMISSION, query=(*COMMON, *LISTS), in_any_project=True) | bucket_shape(WIDTHS, GROUPS))
    async def costs(
        self, request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> BucketPage[CostsResult]:
        """Return costs by bucket of time. Adjustments count on the day on which they were made."""
        buckets = read_buckets(request.query_params, WIDTHS, datetime.datetime.now(datetime.UTC))
        query = sum_query(request.query_params, buckets, caller, GROUPS)
        async with services.reports.connection(caller.id) as conn:
            sums = await cost_sums(conn, query)
            currency = await currency_of(conn, caller.organization_id)
        return bucket_page(buckets, sums, lambda each: _wire(each, currency))


def _wire(each: CostSum, currency: str) -> CostsResult:
    return CostsResult(
        Amount(to_number(each.cost_nanos), currency, each.cost_nanos),
        each.line_item,
        each.project_id,
        each.api_key_id,
        each.quantity,
        None if each.quantity is None else "tokens",
    )
