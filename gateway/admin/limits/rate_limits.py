"""A project's rate limits in OpenAI's shape: requests and tokens of each model per minute, requests per day.

Rate limits are hard limits of the project on one model; null stands for no limit. Limits that this shape cannot express
are served by `limits`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import Controller, Request, get, post
from litestar.params import FromPath
from msgspec import UNSET, Meta, UnsetType

from gateway.admin.access import LIST_QUERY, needs, read_body
from gateway.admin.common import audit_author
from gateway.admin.organization.projects import active_project, existing_project
from gateway.admin.paging import Page, page, read_list_query, unknown_cursor
from gateway.admin.services import Caller, Services
from gateway.db.adapters.routes import list_routes
from gateway.db.limits import limits
from gateway.db.organization import audit
from gateway.domain.errors import NotFound
from gateway.domain.limits.limit import ALERT_PERCENTS, Limit, Unit, Window
from gateway.domain.routing.bases import Bases

if TYPE_CHECKING:
    from gateway.db.pool import Connection

ID_PREFIX = "rl-"

Max = Annotated[int, Meta(ge=0, le=2**62)] | None


class UpdateRateLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """New values of a rate limit. A field that is left out stays as it is."""

    max_requests_per_1_minute: Max | UnsetType = UNSET
    max_tokens_per_1_minute: Max | UnsetType = UNSET
    max_requests_per_1_day: Max | UnsetType = UNSET


class RateLimit(msgspec.Struct, frozen=True):
    """The rate limits of a project for one model. A field is null where there is no limit."""

    id: str
    model: str
    max_requests_per_1_minute: int | None = None
    max_tokens_per_1_minute: int | None = None
    max_requests_per_1_day: int | None = None
    object: Literal["project.rate_limit"] = "project.rate_limit"


_FIELDS: dict[str, tuple[Unit, Window]] = {
    "max_requests_per_1_minute": ("requests", "minute"),
    "max_tokens_per_1_minute": ("tokens", "minute"),
    "max_requests_per_1_day": ("requests", "day"),
}


class RateLimitController(Controller):
    """Endpoints for the rate limits of a project."""

    path = "/projects/{project_id:str}/rate_limits"

    @get(opt=needs("limits.read", query=LIST_QUERY))
    async def list_rate_limits(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Page[RateLimit]:
        """List the rate limits of a project by model."""
        query = read_list_query(request.query_params)
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            shown = await _rate_limits(conn, services.bases, caller.organization_id, project_id)
        if query.after is not None:
            ids = [each.id for each in shown]
            if query.after not in ids:
                raise unknown_cursor(query.after)
            shown = shown[ids.index(query.after) + 1 :]
        return page(shown, query.limit)

    @post("/{rate_limit_id:str}", status_code=200, opt=needs("limits.write", body=UpdateRateLimit))
    async def update_rate_limit(
        self,
        project_id: FromPath[str],
        rate_limit_id: FromPath[str],
        request: Request[Any, Any, Any],
        services: Services,
        caller: Caller,
    ) -> RateLimit:
        """Change the rate limits of a project for a model."""
        wanted = await read_body(request, UpdateRateLimit)
        async with services.database.transaction() as conn:
            await active_project(conn, caller.organization_id, project_id)
            before = await _rate_limit(conn, services.bases, caller.organization_id, project_id, rate_limit_id)
            await _change_limits(conn, wanted, caller.organization_id, project_id, before.model)
            after = await _rate_limit(conn, services.bases, caller.organization_id, project_id, rate_limit_id)
            if after != before:
                await audit.record(
                    conn,
                    audit_author(caller),
                    "rate_limit.updated",
                    after.id,
                    project_id=project_id,
                    before=before,
                    after=after,
                )
        return after


async def _change_limits(
    conn: Connection, wanted: UpdateRateLimit, organization_id: str, project_id: str, model: str
) -> None:
    known = [each.limit for each in await limits.list_limits(conn, organization_id, project_id)]
    for field, (unit, window) in _FIELDS.items():
        value: int | UnsetType | None = getattr(wanted, field)
        if value is None:
            for each in known:
                if _field_of(each, model) == field:
                    await limits.remove_limit(conn, organization_id, project_id, each.id)
        elif value is not UNSET:
            limit = Limit("", organization_id, project_id, None, model, unit, window, value, True, ALERT_PERCENTS)
            await limits.set_limit(conn, limit)


async def _rate_limits(conn: Connection, bases: Bases, organization_id: str, project_id: str) -> list[RateLimit]:
    """Return the rate limit of each model that the project can call."""
    rows = await list_routes(conn, project_id)
    visible = bases.visible(project_id, organization_id)
    adapters = [f"{pool}:{row.name}" for row in rows for pool in bases.pools_of(row.base_digest) if pool in visible]
    known = [each.limit for each in await limits.list_limits(conn, organization_id, project_id)]
    return [_rate_limit_wire(model, known) for model in (*visible, *dict.fromkeys(adapters))]


async def _rate_limit(
    conn: Connection, bases: Bases, organization_id: str, project_id: str, rate_limit_id: str
) -> RateLimit:
    for each in await _rate_limits(conn, bases, organization_id, project_id):
        if each.id == rate_limit_id:
            return each
    raise NotFound(f"The project has no rate limit with the id '{rate_limit_id}'.", param="rate_limit_id")


def _rate_limit_wire(model: str, known: list[Limit]) -> RateLimit:
    values: dict[str, Any] = {field: limit.max for limit in known if (field := _field_of(limit, model)) is not None}
    return RateLimit(ID_PREFIX + model, model, **values)


def _field_of(limit: Limit, model: str) -> str | None:
    """Return the name of the field of OpenAI's shape that shows a limit; None if no field does."""
    if limit.model != model or limit.api_key_id is not None or not limit.hard:
        return None
    return next((field for field, what in _FIELDS.items() if what == (limit.unit, limit.window)), None)
