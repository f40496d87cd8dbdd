"""A project's rate limits in OpenAI's shape: requests and tokens of each model per minute, requests per day.

They are hard limits of the project on one model; what this shape cannot say is at `limits`. null is no limit.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from litestar import Controller, Request, get, post
from litestar.params import FromPath
from msgspec import UNSET, Meta, UnsetType

from gateway.admin.paging import Page, page, read_list_query, unknown_cursor
from gateway.admin.projects import existing_project
from gateway.admin.services import Caller, Services
from gateway.api.fields import decode
from gateway.db import limits
from gateway.db.adapters import list_adapters
from gateway.errors import NotFound
from gateway.limits.limit import Limit, Unit, Window

ID_PREFIX = "rl-"

Max = Annotated[int, Meta(ge=0, le=2**62)] | None


class UpdateRateLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is left out stays as it is."""

    max_requests_per_1_minute: Max | UnsetType = UNSET
    max_tokens_per_1_minute: Max | UnsetType = UNSET
    max_requests_per_1_day: Max | UnsetType = UNSET


class RateLimit(msgspec.Struct, frozen=True):
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

_update_decoder = msgspec.json.Decoder(UpdateRateLimit)


class RateLimitController(Controller):
    path = "/projects/{project_id:str}/rate_limits"

    @get()
    async def list_rate_limits(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Page:
        query = read_list_query(request.query_params)
        shown = await _rate_limits(services, caller.organization_id, project_id)
        if query.after is not None:
            ids = [each.id for each in shown]
            if query.after not in ids:
                raise unknown_cursor(query.after)
            shown = shown[ids.index(query.after) + 1 :]
        return page(shown, query.limit)

    @post("/{rate_limit_id:str}", status_code=200)
    async def update_rate_limit(
        self,
        project_id: FromPath[str],
        rate_limit_id: FromPath[str],
        request: Request[Any, Any, Any],
        services: Services,
        caller: Caller,
    ) -> RateLimit:
        wanted = decode(_update_decoder, await request.body() or b"{}")
        organization_id = caller.organization_id
        known = {each.id: each for each in await _rate_limits(services, organization_id, project_id)}
        if rate_limit_id not in known:
            raise NotFound(f"The project has no rate limit with the id '{rate_limit_id}'.", param="rate_limit_id")
        model = known[rate_limit_id].model
        async with services.database.acquire() as conn, conn.transaction():
            before = await limits.list_limits(conn, organization_id, project_id)
            for field, (unit, window) in _FIELDS.items():
                value: int | UnsetType | None = getattr(wanted, field)
                if value is None:
                    for each in before:
                        if _field_of(each.limit, model) == field:
                            await limits.remove_limit(conn, organization_id, project_id, each.limit.id)
                elif value is not UNSET:
                    limit = Limit("", organization_id, project_id, None, model, unit, window, value, True, (80, 100))
                    await limits.set_limit(conn, limit)
        return next(
            each for each in await _rate_limits(services, organization_id, project_id) if each.id == rate_limit_id
        )


async def _rate_limits(services: Services, organization_id: str, project_id: str) -> list[RateLimit]:
    """One for each model that the project can call. Raises NotFound."""
    async with services.database.acquire() as conn:
        await existing_project(conn, organization_id, project_id)
        names = [None, *(adapter.name for adapter in await list_adapters(conn, project_id))]
        known = [each.limit for each in await limits.list_limits(conn, organization_id, project_id)]
    models = [services.model_name if name is None else f"{services.model_name}:{name}" for name in names]
    return [_shown(model, known) for model in models]


def _shown(model: str, known: list[Limit]) -> RateLimit:
    values: dict[str, Any] = {field: limit.max for limit in known if (field := _field_of(limit, model)) is not None}
    return RateLimit(ID_PREFIX + model, model, **values)


def _field_of(limit: Limit, model: str) -> str | None:
    """The field that shows this limit, where one does."""
    if limit.model != model or limit.api_key_id is not None or not limit.hard:
        return None
    return next((field for field, what in _FIELDS.items() if what == (limit.unit, limit.window)), None)
