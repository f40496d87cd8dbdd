"""Refused requests over HTTP: the limit, rule or fault, and advice."""

from __future__ import annotations

import datetime
from typing import Any, Literal

import msgspec
from litestar import Controller, Request, get
from litestar.datastructures import MultiDict
from litestar.params import FromPath

from gateway.admin.access import LIST_QUERY, needs
from gateway.admin.billing.buckets import MAX_VALUES, list_params, read_projects
from gateway.admin.common import unix_seconds
from gateway.admin.organization.projects import existing_project
from gateway.admin.paging import Page, page, read_list_query, unknown_cursor
from gateway.admin.services import AdminServices, Caller, Services
from gateway.db.ledger import refusals as rows
from gateway.domain.errors import NotFound
from gateway.domain.limits.limit import Scope, Unit, Window
from gateway.domain.tenancy.actor import Actor
from gateway.domain.tenancy.permissions import has_permission
from gateway.domain.tenancy.principal import Permission
from gateway.http.shape import shape

PERMISSION: Permission = "limits.read"
PROJECTS = list_params("project_ids")
NEWEST = 2**63 - 1


class RefusingLimit(msgspec.Struct, frozen=True):
    """The limit that refused a request, as it stood then."""

    id: str
    scope: Scope
    model: str | None
    unit: Unit
    window: Window
    max: int
    used: int | None
    """The amount that was used; null for a limit of the whole organization."""
    reserved: int | None
    """The amount that running requests had reserved; null for a limit of the whole organization."""
    asked: int
    """The least that the request needed."""
    frees_at: int | None
    """Unix seconds at which the limit's window ends; null where the end of running requests, or credit, makes room."""


class Refusal(msgspec.Struct, frozen=True):
    """A refused request, or several alike in the same minute."""

    id: str
    request_id: str
    """The id of the first of these requests."""
    project_id: str
    api_key_id: str | None
    endpoint: str
    model: str | None
    status: int
    code: str | None
    type: str
    param: str | None
    message: str
    """The reason in words, without anything that the client wrote."""
    limit: RefusingLimit | None
    num: int
    """The number of requests that were refused alike in the same minute."""
    created_at: int
    """Unix seconds of the first of these requests."""
    object: Literal["organization.refusal"] = "organization.refusal"


class ExplainedRefusal(Refusal, frozen=True, kw_only=True):
    """A refused request, with what to do about it."""

    left: int | None
    """The amount that was left of the limit; null where no limit refused, or for a limit of the whole organization."""
    free_at: int | None
    """Unix seconds from which there is room again; null where time alone makes no room."""
    advice: str
    """The advice what to do, in a sentence."""


LIST_SHAPE = shape(
    query={name: {"type": "array", "items": {"type": "string"}, "maxItems": MAX_VALUES} for name in PROJECTS}
)


class RefusalController(Controller):
    """Endpoints for the refused requests of all projects that the caller may see."""

    path = "/refusals"

    @get(opt=needs(PERMISSION, query=(*LIST_QUERY, *PROJECTS), in_any_project=True) | LIST_SHAPE)
    async def list_refusals(self, request: Request[Any, Any, Any], services: Services, caller: Caller) -> Page[Refusal]:
        """List the refused requests of the last seven days, the newest first.

        The last 1,000 of each project are kept. Tenants see their own.
        """
        project_ids = read_projects(request.query_params, caller, PERMISSION)
        return await _list(services, caller, request.query_params, project_ids)

    @get("/{request_id:str}", opt=needs(PERMISSION, in_any_project=True))
    async def explain_refusal(self, request_id: FromPath[str], services: Services, caller: Caller) -> ExplainedRefusal:
        """Explain why the request with this x-request-id was refused, and what to do.

        The first 50 of all requests that were refused alike within a minute are found.
        """
        async with services.database.acquire() as conn:
            row = await rows.find_refusal(conn, caller.organization_id, request_id)
        if row is None or not has_permission(caller, PERMISSION, row.project_id):
            raise NotFound(f"No refused request has the id '{request_id}'.", param="request_id")
        shown = msgspec.structs.replace(_wire(row), request_id=request_id)
        limit = shown.limit
        left = None
        if limit is not None and limit.used is not None and limit.reserved is not None:
            left = max(0, limit.max - limit.used - limit.reserved)
        return ExplainedRefusal(
            **msgspec.structs.asdict(shown),
            left=left,
            free_at=limit.frees_at if limit else None,
            advice=advice_text(shown),
        )


class ProjectRefusalController(Controller):
    """The endpoint for the refused requests of a project."""

    path = "/projects/{project_id:str}/refusals"

    @get(opt=needs(PERMISSION, query=LIST_QUERY))
    async def list_project_refusals(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Page[Refusal]:
        """List the refused requests of a project, the newest first."""
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
        return await _list(services, caller, request.query_params, [project_id])


async def _list(
    services: AdminServices, caller: Actor, params: MultiDict[Any], project_ids: list[str] | None
) -> Page[Refusal]:
    query = read_list_query(params)
    organization_id, before = caller.organization_id, NEWEST
    async with services.reports.connection(caller.id) as conn:
        if query.after is not None:
            place = await rows.place_of(conn, organization_id, project_ids=project_ids, refusal_id=query.after)
            if place is None:
                raise unknown_cursor(query.after)
            before = place
        found = await rows.list_refusals(
            conn, organization_id, project_ids=project_ids, before=before, limit=query.limit + 1
        )
    return page([_wire(row) for row in found], query.limit)


def _wire(row: rows.RefusalRow) -> Refusal:
    limit = None
    if row.limited_by is not None:
        asked = row.limited_by["needed"]
        limit = msgspec.convert(row.limited_by | {"asked": asked}, RefusingLimit)
    return Refusal(
        id=row.id,
        request_id=row.request_ids[0],
        project_id=row.project_id,
        api_key_id=row.api_key_id or None,
        endpoint=row.endpoint,
        model=row.model or None,
        status=row.status,
        code=row.code or None,
        type=row.type,
        param=row.param or None,
        message=row.message,
        limit=limit,
        num=row.num,
        created_at=unix_seconds(row.created_at),
    )


_ADVICE = {
    "invalid_api_key": "The API key is wrong, was revoked or has expired. Create a new key and replace the old one.",
    "suspended": "The key, its project or the organization is suspended. Ask an administrator to resume it.",
    "ip_not_allowed": "Add the client's address to the key's list of networks, or send from one that is in it.",
    "insufficient_permissions": "Give the API key the missing scope, or use another key.",
    "model_not_found": "Ask for a model that GET /v1/models lists with this key. An adapter needs a current version.",
    "request_too_large": "Send a smaller body, or raise LORIKEET_MAX_BODY_BYTES.",
    "unsupported_content_encoding": "Send the body as it is, without a Content-Encoding such as gzip.",
    "server_is_overloaded": "Send the request again in a moment. If this happens often, add capacity to the engines.",
    "rate_limit_exceeded": "Send requests more slowly.",
    "conflict": "Another request has the same Idempotency-Key: wait until that request ends, or use a new key.",
}


def advice_text(refusal: Refusal) -> str:
    """Return advice for a refused request in one plain sentence."""
    if refusal.limit is not None:
        return _limit_advice(refusal.limit)
    if (known := _ADVICE.get(refusal.code or "")) is not None:
        return known
    field = f" the field '{refusal.param}' of" if refusal.param else ""
    return f"Correct{field} the request as the reply's message says; sending it again unchanged will not help."


def _limit_advice(limit: RefusingLimit) -> str:
    what = f"the {limit.scope}'s limit of {limit.max} {limit.unit}"
    per = "" if limit.window == "none" else f" per {limit.window}"
    if limit.asked > limit.max:
        return f"The request alone needs more than {what}{per} ever allows: ask for less, or raise the limit."
    if limit.unit == "concurrency":
        return f"Wait until one of the running requests ends, send fewer at a time, or raise {what}."
    if limit.frees_at is not None:
        at = datetime.datetime.fromtimestamp(limit.frees_at, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"Wait until {at}, when the {limit.window} ends, or raise {what}{per}."
    if limit.unit == "cost_nanos":
        return "Add credit to the project, or raise what it may spend."
    return f"Raise {what}{per}, or delete what is stored and counts against the limit."
