"""Traffic over HTTP: requests, how they ended, tokens, cost and times, in buckets of time.

Also lists the busiest projects, models, adapters and keys.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec
from litestar import Controller, Request, get
from litestar.params import FromPath

from gateway.admin.access import needs
from gateway.admin.billing.buckets import (
    COMMON,
    MAX_VALUES,
    PERMISSION,
    WIDTHS,
    BucketPage,
    bucket_page,
    list_params,
    read_buckets,
    read_projects,
    read_time,
    read_values,
)
from gateway.admin.common import utc_time
from gateway.admin.organization.projects import existing_project
from gateway.admin.paging import read_flag, wrong_value
from gateway.admin.services import AdminServices, Caller, Services
from gateway.db.billing.prices import currency_of
from gateway.db.ledger.traffic import (
    Order,
    Percentiles,
    TrafficQuery,
    TrafficSum,
    busiest_groups,
    traffic_sums,
)
from gateway.db.ledger.usage_sums import Width
from gateway.db.organization import names
from gateway.domain.tenancy.actor import Actor
from gateway.http.shape import Shape, shape

if TYPE_CHECKING:
    from gateway.db.pool import Connection

GROUPS = ("project_id", "model", "adapter_id", "adapter_version", "api_key_id")
NARROWING = list_params("models", "adapter_ids", "api_key_ids")
FILTERS = (*NARROWING, *list_params("group_by"))
PROJECTS = list_params("project_ids")
MAX_TOP, DEFAULT_TOP = 100, 10
MAX_TOP_DAYS = 366
MAX_RESULTS = 20_000
"""The most results on a page, over all of its buckets."""


class TrafficNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of requests, tokens, cost and times."""

    num_requests: int
    num_errors: int | None
    """Failed requests; null where traffic is grouped by key."""
    num_refused: int | None
    """Requests that an engine or a server refused, since it cannot serve what they ask for; null where traffic is
    grouped by key."""
    num_cancelled: int | None
    """Requests that the client ended; null where traffic is grouped by key."""
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    cost_nanos: int
    """The cost in billionths of the currency, without adjustments."""
    currency: str
    ttft_ms: Percentiles | None
    """Milliseconds until the first token, within a tenth; null where this was not asked for, or traffic is grouped
    by key."""
    tpot_ms: Percentiles | None
    """Milliseconds per token after the first, within a tenth; null where this was not asked for, or traffic is
    grouped by key."""
    finish_reasons: dict[str, int]
    """Requests by the reason why they ended; empty where traffic is grouped by key."""


class TrafficResult(TrafficNumbers, frozen=True, kw_only=True):
    """The traffic of one group within a bucket of time.

    An id is null unless group_by names it, and where a request has none.
    """

    project_id: str | None
    model: str | None
    adapter_id: str | None
    adapter_version: int | None
    api_key_id: str | None
    object: Literal["organization.traffic.result"] = "organization.traffic.result"


class TopRow(TrafficNumbers, frozen=True, kw_only=True):
    """The traffic of one project, model, adapter or key."""

    id: str
    """The id of the project, model, adapter or key; empty for requests without any."""
    name: str
    """The present name. The name of a model is its id."""
    object: Literal["organization.traffic.top"] = "organization.traffic.top"


class TopList(msgspec.Struct, frozen=True):
    """The busiest projects, models, adapters or keys, the busiest first."""

    data: list[TopRow]
    object: Literal["list"] = "list"


WITH_TIMES = {
    "type": "boolean",
    "default": True,
    "description": "True to compute ttft_ms and tpot_ms, which takes longer.",
}

_VALUES = {"type": "array", "items": {"type": "string"}, "maxItems": MAX_VALUES}


def _time_schemas() -> dict[str, dict[str, Any]]:
    unix = {"type": "integer", "minimum": 0, "maximum": 9_999_999_999, "description": "Unix seconds."}
    return {"start_time": unix, "end_time": unix}


def traffic_shape() -> dict[str, Shape]:
    """Return the `opt` of a route handler with the parameters of buckets and filters."""
    groups = {"type": "array", "items": {"enum": list(GROUPS)}, "maxItems": MAX_VALUES}
    most = max(each.max_limit for each in WIDTHS.values())
    schemas = {name: groups if name.startswith("group_by") else _VALUES for name in (*FILTERS, *PROJECTS)}
    schemas |= {
        **_time_schemas(),
        "bucket_width": {"enum": list(WIDTHS), "default": "1d"},
        "limit": {"type": "integer", "minimum": 1, "maximum": most, "description": "The most buckets in a reply."},
        "times": WITH_TIMES,
    }
    return shape(query=schemas, needed=("start_time",))


TOP_QUERY = ("by", "order", "start_time", "end_time", "limit", "times", *NARROWING, *PROJECTS)
TOP_SHAPE = shape(
    query={
        **_time_schemas(),
        **dict.fromkeys((*NARROWING, *PROJECTS), _VALUES),
        "by": {"enum": ["project_id", "model", "adapter_id", "api_key_id"]},
        "order": {"enum": ["requests", "tokens", "cost", "errors"], "default": "requests"},
        "limit": {"type": "integer", "minimum": 1, "maximum": MAX_TOP, "default": DEFAULT_TOP},
        "times": WITH_TIMES,
    },
    needed=("by", "start_time"),
)


class TrafficController(Controller):
    """Endpoints for the traffic of all projects that the caller may see."""

    path = "/traffic"

    @get(opt=needs(PERMISSION, query=(*COMMON, "times", *FILTERS, *PROJECTS), in_any_project=True) | traffic_shape())
    async def traffic(
        self, request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> BucketPage[TrafficResult]:
        """Return the traffic of all projects by bucket of time, a second or two after the ledger.

        Tenants see the requests of their own projects.
        """
        project_ids = read_projects(request.query_params, caller)
        return await _buckets(request, services, caller, project_ids)

    @get(
        "/top",
        opt=needs(PERMISSION, query=TOP_QUERY, in_any_project=True) | TOP_SHAPE,
    )
    async def top_traffic(self, request: Request[Any, Any, Any], services: Services, caller: Caller) -> TopList:
        """Return the busiest projects, models, adapters or keys within a window of at most a year.

        The window is counted in whole minutes up to an hour, in whole hours up to sixty hours, else in whole days.
        """
        params = request.query_params
        by, order, limit = params.get("by"), params.get("order", "requests"), params.get("limit", str(DEFAULT_TOP))
        if by not in _NAMES:
            raise wrong_value("by", f"expected one of {', '.join(_NAMES)}")
        if order not in _ORDERS:
            raise wrong_value("order", f"expected one of {', '.join(_ORDERS)}")
        if order == "errors" and (by == "api_key_id" or read_values(params, "api_key_ids")):
            raise wrong_value("order", "API keys cannot be ordered by errors, which are not counted by key")
        if not (limit.isascii() and limit.isdecimal() and len(limit) <= 3 and 1 <= int(limit) <= MAX_TOP):
            raise wrong_value("limit", f"expected a whole number from 1 to {MAX_TOP}")
        if "start_time" not in params:
            raise wrong_value("start_time", "expected Unix seconds")
        end_s = int(datetime.datetime.now(datetime.UTC).timestamp()) + 1
        end_s = read_time(params, "end_time") if "end_time" in params else end_s
        width, start, end = _span(read_time(params, "start_time"), end_s)
        query = TrafficQuery(
            organization_id=caller.organization_id,
            width=width,
            start=start,
            end=end,
            project_ids=read_projects(params, caller),
            models=read_values(params, "models"),
            adapter_ids=read_values(params, "adapter_ids"),
            api_key_ids=read_values(params, "api_key_ids"),
            group_by=[by],
            whole=True,
            with_times=read_flag(params, "times", "true"),
        )
        async with services.reports.connection(caller.id) as conn:
            sums = await busiest_groups(conn, query, _ORDERS[order], int(limit))
            ids = [getattr(each, by) or "" for each in sums]
            found = await _names(conn, by, caller.organization_id, ids)
            currency = await currency_of(conn, caller.organization_id)
        rows = zip(ids, sums, strict=True)
        return TopList([TopRow(id=id, name=found.get(id, id), **_numbers(each, currency)) for id, each in rows])


class ProjectTrafficController(Controller):
    """The endpoint for the traffic of a project."""

    path = "/projects/{project_id:str}/traffic"

    @get(opt=needs(PERMISSION, query=(*COMMON, "times", *FILTERS)) | traffic_shape())
    async def project_traffic(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> BucketPage[TrafficResult]:
        """Return the traffic of a project by bucket of time."""
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
        return await _buckets(request, services, caller, [project_id])


async def _buckets(
    request: Request[Any, Any, Any], services: AdminServices, caller: Actor, project_ids: list[str] | None
) -> BucketPage[TrafficResult]:
    params = request.query_params
    buckets = read_buckets(params, WIDTHS, datetime.datetime.now(datetime.UTC))
    groups = read_values(params, "group_by")
    if unknown := [group for group in groups if group not in GROUPS]:
        raise wrong_value("group_by", f"'{unknown[0]}' is not one of {', '.join(GROUPS)}")
    query = TrafficQuery(
        organization_id=caller.organization_id,
        width=buckets.bounds.width,
        start=utc_time(buckets.start),
        end=utc_time(buckets.end),
        project_ids=project_ids,
        models=read_values(params, "models"),
        adapter_ids=read_values(params, "adapter_ids"),
        api_key_ids=read_values(params, "api_key_ids"),
        group_by=groups,
        with_times=read_flag(params, "times", "true"),
    )
    if query.is_by_key and "adapter_version" in groups:
        raise wrong_value("group_by", "traffic can be grouped by adapter_version or by key, not by both")
    async with services.reports.connection(caller.id) as conn:
        sums = await traffic_sums(conn, query, MAX_RESULTS + 1)
        currency = await currency_of(conn, caller.organization_id)
    if len(sums) > MAX_RESULTS:
        raise wrong_value(
            "limit", f"these groups have more than {MAX_RESULTS} results: ask for fewer buckets, or add a filter"
        )
    return bucket_page(
        buckets,
        sums,
        lambda each: TrafficResult(
            project_id=each.project_id,
            model=each.model,
            adapter_id=each.adapter_id,
            adapter_version=each.adapter_version,
            api_key_id=each.api_key_id,
            **_numbers(each, currency),
        ),
    )


def _numbers(each: TrafficSum, currency: str) -> dict[str, Any]:
    ends = {"stop": each.num_stop, "length": each.num_length, "abort": each.num_cancelled}
    ends |= {"error": each.num_errors, "refused": each.num_refused}
    return {
        "num_requests": each.num_requests,
        "num_errors": each.num_errors,
        "num_refused": each.num_refused,
        "num_cancelled": each.num_cancelled,
        "input_tokens": each.prompt_tokens,
        "cached_tokens": each.cached_tokens,
        "output_tokens": each.completion_tokens,
        "cost_nanos": each.cost_nanos,
        "currency": currency,
        "ttft_ms": each.ttft_ms,
        "tpot_ms": each.tpot_ms,
        "finish_reasons": {reason: num for reason, num in ends.items() if num},
    }


_ORDERS: Mapping[str, Order] = {order: order for order in get_args(Order)}
_NAMES = ("project_id", "model", "adapter_id", "api_key_id")


async def _names(conn: Connection, by: str, organization_id: str, ids: list[str]) -> dict[str, str]:
    match by:
        case "project_id":
            return await names.project_names(conn, organization_id, ids)
        case "adapter_id":
            return await names.adapter_names(conn, organization_id, ids)
        case "api_key_id":
            return await names.key_names(conn, organization_id, ids)
    return {}


def _span(start_s: int, end_s: int) -> tuple[Width, datetime.datetime, datetime.datetime]:
    """Return the width and the borders of buckets for a span of time.

    The width is the finest with at most sixty buckets; else days.

    start_s, end_s: the ends of the span in Unix seconds.
    """
    if end_s <= start_s:
        raise wrong_value("end_time", "the end must be after start_time")
    if end_s - start_s > MAX_TOP_DAYS * 86_400:
        raise wrong_value("start_time", f"the start must be at most {MAX_TOP_DAYS} days before end_time")
    bounds = next(each for each in WIDTHS.values() if (end_s - start_s) <= 60 * each.seconds or each.width == "day")
    start = start_s // bounds.seconds * bounds.seconds
    return bounds.width, utc_time(start), utc_time(-(-end_s // bounds.seconds) * bounds.seconds)
