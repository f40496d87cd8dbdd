"""Recent requests over HTTP: what they used, how long they took and what they cost, without prompts and replies."""

from __future__ import annotations

import base64
import binascii
import datetime
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from litestar import Controller, Request, get
from litestar.datastructures import MultiDict
from litestar.params import FromPath

from gateway.admin.access import needs
from gateway.admin.billing.buckets import MAX_VALUES, list_params, read_projects, read_time, read_values
from gateway.admin.common import utc_time
from gateway.admin.organization.projects import existing_project
from gateway.admin.paging import read_list_query, wrong_value
from gateway.admin.services import AdminServices, Caller, Services
from gateway.db.billing.prices import currency_of
from gateway.db.ledger import request_list, requests
from gateway.domain.errors import NotFound
from gateway.domain.tenancy.actor import Actor
from gateway.domain.tenancy.permissions import has_permission
from gateway.http.shape import Shape, shape

if TYPE_CHECKING:
    from gateway.db.pool import Connection

WINDOW_S = 31 * 86_400
MAX_WINDOW_S = 92 * 86_400
FILTERS = list_params("models", "api_key_ids", "adapter_ids", "finish_reasons")
QUERY = ("start_time", "end_time", "request_id", "after", "limit", *FILTERS)

Status = Literal["completed", "cancelled", "error", "refused"]


class RequestOut(msgspec.Struct, frozen=True):
    """A request that was run.

    Tokens and cost count all prompts and attempts; model, adapter and times come from the first prompt's last attempt,
    times as the gateway saw them.
    """

    id: str
    """The `x-request-id` of the reply."""
    project_id: str
    api_key_id: str
    endpoint: str
    """The path of the request, such as `/v1/chat/completions`."""
    model: str
    """The base model and the adapter: `<base>` or `<base>:<adapter>`, whatever name the client used."""
    adapter_id: str | None
    """The adapter; null for a base model."""
    adapter_version: int | None
    stream: bool
    """True if the reply was streamed."""
    status: Status
    """The outcome. `cancelled` where the client went away, or where a batch ended before its line had a result;
    `refused` where the engine or server cannot serve what the request asks for, such as its grammar or its adapter."""
    finish_reason: str
    """The end of the last attempt: `stop`, `length`, `abort`, `error`, `refused`, or `superseded` where the attempt was
    given up, for another one or with its batch: nobody is billed, sums do not count the request, and no filter finds
    it."""
    input_tokens: int
    cached_tokens: int
    """The part of `input_tokens` that the engine found in its cache."""
    output_tokens: int
    discarded_tokens: int
    """Tokens that were computed after the end of the text. They are not billed."""
    queue_ms: float
    """Milliseconds that the request waited in the engine."""
    ttft_ms: float | None
    """Milliseconds to the first token; null where no token came."""
    latency_ms: float | None
    """Milliseconds to the end of the reply; null where the gateway died before it."""
    tpot_ms: float | None
    """Milliseconds per output token of the first prompt."""
    cost_nanos: int
    """The cost in billionths of the currency."""
    currency: str
    service_tier: str
    created_at: float
    """Unix seconds, with a fraction."""
    finished_at: float
    """Unix seconds, with a fraction."""
    trace_id: str | None
    """The trace of the request (W3C Trace Context): the client's, or one of this gateway's where the request was
    traced."""
    object: Literal["organization.request"] = "organization.request"


class RequestList(msgspec.Struct, frozen=True):
    """A page of requests, the newest first."""

    data: list[RequestOut]
    first_id: str | None
    last_id: str | None
    """The value of `after` for the next page."""
    has_more: bool
    """True if there are more pages. With filters a page may hold fewer requests than the limit, or none, and be
    followed by others."""
    object: Literal["list"] = "list"


class PriceLine(msgspec.Struct, frozen=True):
    """A part of a request's price.

    The part is tokens at nanos_per_million, less the project's discount, rounded within the request.
    """

    item: Literal["input", "cached input", "output"]
    tokens: int
    nanos_per_million: int | None
    """The price of a million tokens in billionths of the currency; null where there was no price."""
    cost_nanos: int
    """The cost in billionths of the currency."""


class Attempt(msgspec.Struct, frozen=True):
    """An attempt to compute a prompt of a request."""

    request_id: str
    """The id of the request; for prompts after the first, with a dot and a number."""
    attempt: int
    """The number of the attempt, from 0."""
    revision: int
    """The number of the record, 0 for the first. Each further record holds the difference between a later, better count
    and the record before."""
    model: str
    """The model that was tried: attempts by a route may be at several."""
    finish_reason: str
    """The end of the attempt; `superseded` where another attempt took its place, which costs nothing."""
    queue_ms: float
    """Milliseconds that the prompt waited in the engine."""
    prefill_ms: float
    """Milliseconds from the start of the computation to the first token."""
    decode_ms: float
    """Milliseconds from the first token to the end."""
    ttft_ms: float | None
    """Milliseconds to the first token, as the gateway saw it; null where no token came."""
    latency_ms: float | None
    """Milliseconds to the end, as the gateway saw it."""
    adapter_digest: str | None
    """The digest of the adapter's content; null for a base model."""
    adapter_load_bytes: int
    """Bytes of the adapter if the attempt had to load it, else 0."""
    price_class: str
    """The price class of the adapter."""
    price_version: int | None
    """The version of the prices; null where there were none."""
    discount_percent: float
    discarded_tokens: int
    """Tokens that were computed after the end of the text. They are not billed."""
    price_lines: list[PriceLine]
    cost_nanos: int
    """The cost in billionths of the currency."""
    finished_at: float
    """Unix seconds, with a fraction."""
    own_key: bool
    """True where the server of another maker was asked with the project's own key, for which nothing is charged."""


class RequestDetails(RequestOut, frozen=True, kw_only=True):
    """A request with every attempt and the parts of its price."""

    attempts: list[Attempt]


def request_query_shape(extra: tuple[str, ...] = ()) -> dict[str, Shape]:
    """Return the `opt` of a route handler with the parameters of a query for requests.

    extra: the names of further parameters that may be given several times.
    """
    unix = {"type": "integer", "minimum": 0, "maximum": 9_999_999_999, "description": "Unix seconds."}
    values = {"type": "array", "items": {"type": "string"}, "maxItems": MAX_VALUES}
    count = {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}
    return shape(
        query={"start_time": unix, "end_time": unix, "limit": count} | dict.fromkeys((*FILTERS, *extra), values)
    )


PROJECTS = list_params("project_ids")


class RequestController(Controller):
    """Endpoints for the requests of all projects that the caller may see."""

    path = "/requests"

    @get(opt=needs("billing.read", query=(*QUERY, *PROJECTS), in_any_project=True) | request_query_shape(PROJECTS))
    async def list_requests(self, request: Request[Any, Any, Any], services: Services, caller: Caller) -> RequestList:
        """List the requests of the last 31 days, or of a window of at most 92 days. Tenants see their own."""
        return await _list(services, caller, request.query_params, read_projects(request.query_params, caller))

    @get("/{request_id:str}", opt=needs("billing.read", in_any_project=True))
    async def get_request(self, request_id: FromPath[str], services: Services, caller: Caller) -> RequestDetails:
        """Return a request of the last 92 days, with every attempt and the parts of its price."""
        async with services.database.acquire() as conn:
            row = await requests.find_request(conn, caller.organization_id, request_id)
            if row is None or not has_permission(caller, "billing.read", row.project_id):
                raise NotFound(f"No request has the id '{request_id}'.", param="request_id")
            attempts = await requests.list_attempts(conn, caller.organization_id, row)
            currency = await currency_of(conn, caller.organization_id)
        shown = msgspec.structs.asdict(request_wire(row, currency))
        return RequestDetails(**shown, attempts=[_attempt(each) for each in attempts])


class ProjectRequestController(Controller):
    """The endpoint for the requests of a project."""

    path = "/projects/{project_id:str}/requests"

    @get(opt=needs("billing.read", query=QUERY) | request_query_shape())
    async def list_project_requests(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> RequestList:
        """List the requests of a project, the newest first."""
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
        return await _list(services, caller, request.query_params, [project_id])


async def _list(
    services: AdminServices, caller: Actor, params: MultiDict[Any], project_ids: list[str] | None
) -> RequestList:
    start, end = read_window(params)
    page = read_list_query(params)
    query = request_list.RequestQuery(
        organization_id=caller.organization_id,
        start=start,
        end=end,
        after=None if page.after is None else read_cursor(page.after),
        limit=page.limit,
        project_ids=project_ids,
        models=read_values(params, "models"),
        api_key_ids=read_values(params, "api_key_ids"),
        adapter_ids=read_values(params, "adapter_ids"),
        finish_reasons=read_values(params, "finish_reasons"),
    )
    async with services.reports.connection(caller.id) as conn:
        if (request_id := params.get("request_id")) is not None:
            found = await _only_request(conn, query, request_id)
        else:
            found = await request_list.list_requests(conn, query)
        currency = await currency_of(conn, caller.organization_id)
    data = [request_wire(row, currency) for row in found.rows]
    return RequestList(
        data,
        first_id=cursor(request_list.RequestKey(found.rows[0].created_at, found.rows[0].request_id)) if data else None,
        last_id=None if found.next_key is None else cursor(found.next_key),
        has_more=found.next_key is not None,
    )


async def _only_request(
    conn: Connection, query: request_list.RequestQuery, request_id: str
) -> request_list.RequestsFound:
    """Return the request with this id, if it is within the query's projects and times; else an empty result."""
    row = await requests.find_request(conn, query.organization_id, request_id)
    fits = (
        row is not None
        and query.start <= row.created_at < query.end
        and (query.project_ids is None or row.project_id in query.project_ids)
    )
    return request_list.RequestsFound([row] if row is not None and fits else [], None)


def read_window(params: MultiDict[Any]) -> tuple[datetime.datetime, datetime.datetime]:
    """Read the window from start_time up to end_time.

    Raises InvalidRequest: when a time is wrong, or the window is empty or too long; the error names the parameter.
    """
    now_s = int(datetime.datetime.now(datetime.UTC).timestamp())
    end_s = min(read_time(params, "end_time"), now_s + 60) if "end_time" in params else now_s + 60
    start_s = read_time(params, "start_time") if "start_time" in params else max(0, end_s - WINDOW_S)
    if start_s >= end_s:
        raise wrong_value("start_time", "the start must be in the past and before end_time")
    if end_s - start_s > MAX_WINDOW_S:
        raise wrong_value("start_time", f"the start must be at most {MAX_WINDOW_S // 86_400} days before end_time")
    return utc_time(start_s), utc_time(end_s)


def cursor(key: request_list.RequestKey) -> str:
    """Return the text that stands for a request's place in the list, as `after`; `read_cursor` reads it."""
    microseconds = round(key.created_at.timestamp() * 1e6)
    return base64.urlsafe_b64encode(f"{microseconds}/{key.request_id}".encode()).decode().rstrip("=")


def read_cursor(text: str) -> request_list.RequestKey:
    """Read the place after which a page begins.

    Raises InvalidRequest: for a text that no page gave.
    """
    try:
        decoded = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
        microseconds, slash, request_id = decoded.partition("/")
        if not (slash and "\0" not in request_id and microseconds.isascii() and microseconds.isdecimal()):
            raise ValueError
        at = utc_time(0) + datetime.timedelta(microseconds=int(microseconds))
    except (binascii.Error, ValueError, OverflowError):
        raise wrong_value("after", "expected last_id of a page of this list") from None
    return request_list.RequestKey(at, request_id)


def request_wire(row: requests.RequestRow, currency: str) -> RequestOut:
    """Return a request as the admin API shows it. currency: the currency of the request's cost."""
    return RequestOut(
        id=row.request_id,
        project_id=row.project_id,
        api_key_id=row.api_key_id,
        endpoint=row.endpoint,
        model=row.model,
        adapter_id=row.adapter_id,
        adapter_version=row.adapter_version,
        stream=row.stream,
        status=status_of(row.finish_reason),
        finish_reason=row.finish_reason,
        input_tokens=row.prompt_tokens,
        cached_tokens=row.cached_tokens,
        output_tokens=row.completion_tokens,
        discarded_tokens=row.discarded_tokens,
        queue_ms=row.queue_ms,
        ttft_ms=row.ttft_ms,
        latency_ms=row.latency_ms,
        tpot_ms=_tpot_ms(row),
        cost_nanos=row.cost_nanos,
        currency=currency,
        service_tier=row.service_tier,
        created_at=row.created_at.timestamp(),
        finished_at=row.finished_at.timestamp(),
        trace_id=row.trace_id,
    )


def status_of(finish_reason: str) -> Status:
    """Return the status that replies show for the finish reason of a request."""
    match finish_reason:
        case "error":
            return "error"
        case "refused":
            return "refused"
        case "abort" | "superseded":
            return "cancelled"
    return "completed"


def _tpot_ms(row: requests.RequestRow) -> float | None:
    """Return the milliseconds per output token after the first, of the attempt whose times are shown."""
    if row.ttft_ms is None or row.latency_ms is None or row.timed_tokens < 2:
        return None
    return max(0.0, row.latency_ms - row.ttft_ms) / (row.timed_tokens - 1)


def _attempt(row: requests.AttemptRow) -> Attempt:
    uncached = row.prompt_tokens - row.cached_tokens
    return Attempt(
        request_id=row.request_id,
        attempt=row.attempt,
        revision=row.revision,
        model=row.model,
        finish_reason=row.finish_reason,
        queue_ms=row.queue_ms,
        prefill_ms=row.prefill_ms,
        decode_ms=row.decode_ms,
        ttft_ms=row.ttft_ms,
        latency_ms=row.latency_ms,
        adapter_digest=row.adapter_digest,
        adapter_load_bytes=row.adapter_load_bytes,
        price_class=row.adapter_class,
        price_version=row.price_version,
        discount_percent=row.basis_points / 100,
        discarded_tokens=row.discarded_tokens,
        price_lines=[
            PriceLine("input", uncached, row.input_nanos, row.input_cost_nanos),
            PriceLine("cached input", row.cached_tokens, row.cached_input_nanos, row.cached_cost_nanos),
            PriceLine("output", row.completion_tokens, row.output_nanos, row.output_cost_nanos),
        ],
        cost_nanos=row.cost_nanos,
        finished_at=row.finished_at.timestamp(),
        own_key=bool(row.own_key),
    )
