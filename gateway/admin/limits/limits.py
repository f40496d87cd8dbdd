"""Limits over HTTP: an organization's, a project's and its keys', with what is used, reserved and free of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import Controller, Request, delete, get, post
from litestar.params import FromPath
from msgspec import UNSET, Meta, UnsetType

from gateway.admin.access import LIST_QUERY, needs, read_body
from gateway.admin.common import audit_author
from gateway.admin.organization.projects import active_project, existing_project
from gateway.admin.paging import Page, page_of_all, read_list_query, wrong_value
from gateway.admin.services import Caller, Services
from gateway.db.limits import limits
from gateway.db.organization import audit
from gateway.db.organization.keys import get_key
from gateway.db.organization.organizations import lock_organization
from gateway.domain.errors import Conflict, InvalidRequest, NotFound
from gateway.domain.limits.limit import (
    ALERT_PERCENTS,
    OF_NO_KEY,
    Limit,
    Scope,
    Unit,
    Window,
    limit_fault,
    sends_alerts,
)
from gateway.domain.tenancy.actor import Actor
from gateway.domain.tenancy.permissions import authorize

if TYPE_CHECKING:
    from gateway.db.pool import Connection

MAX_LIMITS = 1000
"""The most limits of one project, or of the organization itself: every request looks at all that apply to it."""

Percent = Annotated[int, Meta(ge=1, le=100)]


class SetLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A limit to create, or to change where one of the same unit, window, model, key and hardness exists."""

    unit: Unit
    max: Annotated[int, Meta(ge=0, le=2**62)]
    """The most that is allowed in each window."""
    window: Window = "none"
    hard: bool = True
    """True if the limit refuses requests. A soft limit only alerts."""
    model: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    """The model to which the limit applies; null for all models."""
    api_key_id: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    """The API key to which the limit applies; null for all keys of the project."""
    alert_percents: Annotated[tuple[Percent, ...], Meta(max_length=10)] | UnsetType = UNSET
    """Percentages of max: webhooks are called when one of them is crossed. By default these are 80 and 100 for a limit
    with a window."""


class LimitOut(msgspec.Struct, frozen=True):
    """A limit, and how much of it is used."""

    id: str
    scope: Scope
    project_id: str | None
    api_key_id: str | None
    model: str | None
    unit: Unit
    window: Window
    window_end: int | None
    """Unix seconds at which the present window ends."""
    max: int
    hard: bool
    alert_percents: tuple[int, ...]
    used: int
    """The amount that the ledger has of the window."""
    reserved: int
    """The amount reserved for requests that run or are about to run."""
    free: int
    """The amount that is left."""
    object: Literal["organization.limit"] = "organization.limit"


class DeletedLimit(msgspec.Struct, frozen=True):
    """A limit that was deleted."""

    id: str
    deleted: Literal[True] = True
    object: Literal["organization.limit.deleted"] = "organization.limit.deleted"


class ProjectLimitController(Controller):
    """Endpoints for the limits of a project and of the project's API keys."""

    path = "/projects/{project_id:str}/limits"

    @get(opt=needs("limits.read", query=LIST_QUERY))
    async def list_project_limits(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Page[LimitOut]:
        """List the limits of a project and of its API keys."""
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            return await _list(conn, request, caller.organization_id, project_id)

    @post(status_code=200, opt=needs("key_limits.write", body=SetLimit))
    async def set_project_limit(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> LimitOut:
        """Set a limit of a project or API key. A limit of the same unit, window, model, key and hardness is changed."""
        wanted = await read_body(request, SetLimit)
        _check_may_change(caller, wanted.api_key_id, project_id)
        async with services.database.transaction() as conn:
            await active_project(conn, caller.organization_id, project_id)
            return await store_limit(conn, wanted, caller, project_id)

    @delete("/{limit_id:str}", status_code=200, opt=needs("key_limits.write"))
    async def remove_project_limit(
        self, project_id: FromPath[str], limit_id: FromPath[str], services: Services, caller: Caller
    ) -> DeletedLimit:
        """Delete a limit of a project or API key."""
        async with services.database.transaction() as conn:
            await existing_project(conn, caller.organization_id, project_id, lock=True)
            return await delete_limit(conn, caller, project_id, limit_id)


class OrganizationLimitController(Controller):
    """Endpoints for the limits of the organization."""

    path = "/limits"

    @get(opt=needs("limits.read", query=LIST_QUERY))
    async def list_limits(self, request: Request[Any, Any, Any], services: Services, caller: Caller) -> Page[LimitOut]:
        """List the limits of the organization."""
        async with services.database.acquire() as conn:
            return await _list(conn, request, caller.organization_id, None)

    @post(status_code=200, opt=needs("limits.write", body=SetLimit))
    async def set_limit(self, request: Request[Any, Any, Any], services: Services, caller: Caller) -> LimitOut:
        """Set a limit of the organization. A limit of the same unit, window, model and hardness is changed."""
        wanted = await read_body(request, SetLimit)
        async with services.database.transaction() as conn:
            await lock_organization(conn, caller.organization_id)
            return await store_limit(conn, wanted, caller, None)

    @delete("/{limit_id:str}", status_code=200, opt=needs("limits.write"))
    async def remove_limit(self, limit_id: FromPath[str], services: Services, caller: Caller) -> DeletedLimit:
        """Delete a limit of the organization."""
        async with services.database.transaction() as conn:
            await lock_organization(conn, caller.organization_id)
            return await delete_limit(conn, caller, None, limit_id)


async def _list(
    conn: Connection, request: Request[Any, Any, Any], organization_id: str, project_id: str | None
) -> Page[LimitOut]:
    query = read_list_query(request.query_params)
    shown = [limit_wire(each) for each in await limits.list_limits(conn, organization_id, project_id)]
    return page_of_all(shown, query)


async def store_limit(conn: Connection, wanted: SetLimit, caller: Actor, project_id: str | None) -> LimitOut:
    """Set a limit, in a transaction that holds the lock of the project or, without a project, of the organization.

    Raises InvalidRequest: when a field is wrong; the error names the field.
    """
    percents = wanted.alert_percents
    if percents is UNSET:
        percents = ALERT_PERCENTS if sends_alerts(wanted.unit, wanted.window) else ()
    if (wrong := limit_fault(wanted.unit, wanted.window, hard=wanted.hard, alert_percents=percents)) is not None:
        raise wrong_value(wrong[0], f"it {wrong[1]}")
    if wanted.model is not None and wanted.unit == "storage_bytes":
        raise wrong_value("model", "a limit with the unit 'storage_bytes' counts all adapters and has no model")
    if wanted.model is not None and "\0" in wanted.model:
        raise wrong_value("model", "it must not hold a NUL character")
    if wanted.api_key_id is not None:
        await _check_key(conn, wanted, project_id)
    limit = Limit(
        "",
        caller.organization_id,
        project_id,
        wanted.api_key_id,
        wanted.model,
        wanted.unit,
        wanted.window,
        wanted.max,
        wanted.hard,
        tuple(sorted(set(percents))),
    )
    known = {each.limit.id: each for each in await limits.list_limits(conn, caller.organization_id, project_id)}
    limit_id, is_new = await limits.set_limit(conn, limit)
    if is_new and len(known) >= MAX_LIMITS:
        raise InvalidRequest(
            f"There are already {MAX_LIMITS} limits, the most there can be. Delete one first.", code="too_many_limits"
        )
    (shown,) = await limits.list_limits(conn, caller.organization_id, project_id, limit_id=limit_id)
    after, before = limit_wire(shown), None if is_new else limit_wire(known[limit_id])
    if before is None or (before.max, before.alert_percents) != (after.max, after.alert_percents):
        event = "limit.created" if is_new else "limit.updated"
        await audit.record(
            conn, audit_author(caller), event, limit_id, project_id=project_id, before=before, after=after
        )
    return after


async def _check_key(conn: Connection, wanted: SetLimit, project_id: str | None) -> None:
    """Check that a key is the project's.

    Raises InvalidRequest: when the project has no such key, whether or not another project has, or the key was revoked.
    """
    assert wanted.api_key_id is not None
    known = None
    if project_id is not None and wanted.unit not in OF_NO_KEY and "\0" not in wanted.api_key_id:
        known = await get_key(conn, project_id, wanted.api_key_id)
    if known is None or known.revoked_at is not None:
        raise InvalidRequest(
            f"The project has no API key with the id '{wanted.api_key_id}' to which this limit could apply.",
            param="api_key_id",
            code="invalid_value",
        )


async def delete_limit(conn: Connection, caller: Actor, project_id: str | None, limit_id: str) -> DeletedLimit:
    """Remove a limit, in a transaction that holds the lock of the project or, without one, of the organization.

    Raises NotFound: when there is no such limit.
    Raises Conflict: when the limit is the balance of a prepaid project.
    """
    found = await limits.list_limits(conn, caller.organization_id, project_id, limit_id=limit_id)
    if not found:
        raise NotFound(f"There is no limit with the id '{limit_id}'.", param="limit_id")
    before = limit_wire(found[0])
    _check_may_change(caller, before.api_key_id, project_id)
    if found[0].limit.is_balance:
        raise Conflict(
            "This limit is the balance of a prepaid project and cannot be deleted. It ends when the project becomes "
            "postpaid.",
            param="limit_id",
            code="limit_is_balance",
        )
    await limits.remove_limit(conn, caller.organization_id, project_id, limit_id)
    await audit.record(conn, audit_author(caller), "limit.deleted", limit_id, project_id=project_id, before=before)
    return DeletedLimit(limit_id)


def _check_may_change(caller: Actor, api_key_id: str | None, project_id: str | None) -> None:
    """Check that the caller may change a limit. A role in a project is enough for limits of the project's keys alone.

    api_key_id: the key that the limit is for; None: a limit for more than one key.

    Raises PermissionDenied: when the caller may not change the limit.
    """
    if api_key_id is None:
        authorize(caller, "limits.write", project_id)


def limit_wire(standing: limits.LimitState) -> LimitOut:
    """Return a limit with its use as the admin API shows it."""
    limit = standing.limit
    return LimitOut(
        limit.id,
        limit.scope,
        limit.project_id,
        limit.api_key_id,
        limit.model,
        limit.unit,
        limit.window,
        standing.window_end,
        limit.max,
        limit.hard,
        limit.alert_percents,
        standing.used,
        standing.reserved,
        standing.free,
    )
