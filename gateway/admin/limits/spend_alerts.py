"""Spend alerts in OpenAI's shape: an amount per month at which an organization's webhooks are called.

A spend alert is the soft limit of cost per month on all models and keys, so an organization and each of its projects
have at most one; further thresholds are `alert_percents` of limits. No mail is sent: the only channel is "webhook".
Source: `spend_alerts` of organizations and projects in OpenAI's Administration API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import Controller, Request, delete, get, post
from litestar.params import FromPath
from msgspec import Meta

from gateway.admin.access import LIST_QUERY, needs, read_body
from gateway.admin.limits.limits import LimitOut, SetLimit, delete_limit, store_limit
from gateway.admin.limits.spend_limits import CENT_NANOS, MAX_CENTS, monthly_cost_limit
from gateway.admin.organization.projects import active_project, existing_project
from gateway.admin.paging import Page, page, read_list_query, unknown_cursor
from gateway.admin.services import Caller, Services
from gateway.db.organization.organizations import lock_organization
from gateway.domain.errors import Conflict, NotFound
from gateway.domain.tenancy.actor import Actor

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class Channel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The receiver of an alert: every webhook of the organization."""

    type: Literal["webhook"]


WEBHOOK = Channel("webhook")


class SetSpendAlert(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A spend alert to create or to change."""

    threshold_amount: Annotated[int, Meta(ge=0, le=MAX_CENTS)]
    """The amount in cents at which the alert is sent."""
    currency: Literal["USD"]
    interval: Literal["month"]
    notification_channel: Channel


class SpendAlert(msgspec.Struct, frozen=True):
    """An alert that is sent once a month's cost reaches an amount."""

    id: str
    threshold_amount: int
    """The amount in cents at which the alert is sent."""
    object: Literal["organization.spend_alert", "project.spend_alert"]
    notification_channel: Channel = WEBHOOK
    currency: Literal["USD"] = "USD"
    interval: Literal["month"] = "month"


class DeletedSpendAlert(msgspec.Struct, frozen=True):
    """A spend alert that was deleted."""

    id: str
    object: Literal["organization.spend_alert.deleted", "project.spend_alert.deleted"]
    deleted: Literal[True] = True


class ProjectSpendAlertController(Controller):
    """Endpoints for the spend alerts of a project."""

    path = "/projects/{project_id:str}/spend_alerts"

    @get(opt=needs("limits.read", query=LIST_QUERY))
    async def list_project_spend_alerts(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Page[SpendAlert]:
        """List the spend alerts of a project."""
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            return await _list(conn, request, caller, project_id)

    @post(status_code=200, opt=needs("limits.write", body=SetSpendAlert))
    async def create_project_spend_alert(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> SpendAlert:
        """Create a spend alert of a project."""
        wanted = await read_body(request, SetSpendAlert)
        async with services.database.transaction() as conn:
            await active_project(conn, caller.organization_id, project_id)
            return await _create(conn, wanted, caller, project_id)

    @get("/{alert_id:str}", opt=needs("limits.read"))
    async def read_project_spend_alert(
        self, project_id: FromPath[str], alert_id: FromPath[str], services: Services, caller: Caller
    ) -> SpendAlert:
        """Return a spend alert of a project."""
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            return _spend_alert_wire(await _existing_alert(conn, caller, project_id, alert_id))

    @post("/{alert_id:str}", status_code=200, opt=needs("limits.write", body=SetSpendAlert))
    async def update_project_spend_alert(
        self,
        project_id: FromPath[str],
        alert_id: FromPath[str],
        request: Request[Any, Any, Any],
        services: Services,
        caller: Caller,
    ) -> SpendAlert:
        """Change a spend alert of a project."""
        wanted = await read_body(request, SetSpendAlert)
        async with services.database.transaction() as conn:
            await active_project(conn, caller.organization_id, project_id)
            known = await _existing_alert(conn, caller, project_id, alert_id)
            return _spend_alert_wire(await store_limit(conn, _limit(wanted, known.alert_percents), caller, project_id))

    @delete("/{alert_id:str}", status_code=200, opt=needs("limits.write"))
    async def remove_project_spend_alert(
        self, project_id: FromPath[str], alert_id: FromPath[str], services: Services, caller: Caller
    ) -> DeletedSpendAlert:
        """Delete a spend alert of a project."""
        async with services.database.transaction() as conn:
            await existing_project(conn, caller.organization_id, project_id, lock=True)
            await _existing_alert(conn, caller, project_id, alert_id)
            await delete_limit(conn, caller, project_id, alert_id)
        return DeletedSpendAlert(alert_id, "project.spend_alert.deleted")


class OrganizationSpendAlertController(Controller):
    """Endpoints for the spend alerts of the organization."""

    path = "/spend_alerts"

    @get(opt=needs("limits.read", query=LIST_QUERY))
    async def list_spend_alerts(
        self, request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Page[SpendAlert]:
        """List the spend alerts of the organization."""
        async with services.database.acquire() as conn:
            return await _list(conn, request, caller, None)

    @post(status_code=200, opt=needs("limits.write", body=SetSpendAlert))
    async def create_spend_alert(
        self, request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> SpendAlert:
        """Create a spend alert of the organization."""
        wanted = await read_body(request, SetSpendAlert)
        async with services.database.transaction() as conn:
            await lock_organization(conn, caller.organization_id)
            return await _create(conn, wanted, caller, None)

    @get("/{alert_id:str}", opt=needs("limits.read"))
    async def read_spend_alert(self, alert_id: FromPath[str], services: Services, caller: Caller) -> SpendAlert:
        """Return a spend alert of the organization."""
        async with services.database.acquire() as conn:
            return _spend_alert_wire(await _existing_alert(conn, caller, None, alert_id))

    @post("/{alert_id:str}", status_code=200, opt=needs("limits.write", body=SetSpendAlert))
    async def update_spend_alert(
        self, alert_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> SpendAlert:
        """Change a spend alert of the organization."""
        wanted = await read_body(request, SetSpendAlert)
        async with services.database.transaction() as conn:
            await lock_organization(conn, caller.organization_id)
            known = await _existing_alert(conn, caller, None, alert_id)
            return _spend_alert_wire(await store_limit(conn, _limit(wanted, known.alert_percents), caller, None))

    @delete("/{alert_id:str}", status_code=200, opt=needs("limits.write"))
    async def remove_spend_alert(
        self, alert_id: FromPath[str], services: Services, caller: Caller
    ) -> DeletedSpendAlert:
        """Delete a spend alert of the organization."""
        async with services.database.transaction() as conn:
            await lock_organization(conn, caller.organization_id)
            await _existing_alert(conn, caller, None, alert_id)
            await delete_limit(conn, caller, None, alert_id)
        return DeletedSpendAlert(alert_id, "organization.spend_alert.deleted")


async def _list(
    conn: Connection, request: Request[Any, Any, Any], caller: Actor, project_id: str | None
) -> Page[SpendAlert]:
    query = read_list_query(request.query_params)
    found = await monthly_cost_limit(conn, caller.organization_id, project_id, hard=False)
    if query.after is not None and (found is None or found.id != query.after):
        raise unknown_cursor(query.after)
    return page([_spend_alert_wire(found)] if found is not None and query.after is None else [], query.limit)


async def _create(conn: Connection, wanted: SetSpendAlert, caller: Actor, project_id: str | None) -> SpendAlert:
    known = await monthly_cost_limit(conn, caller.organization_id, project_id, hard=False)
    if known is not None:
        raise Conflict(f"There is already a spend alert, with the id '{known.id}'. Change that alert instead.")
    return _spend_alert_wire(await store_limit(conn, _limit(wanted, (100,)), caller, project_id))


async def _existing_alert(conn: Connection, caller: Actor, project_id: str | None, alert_id: str) -> LimitOut:
    found = await monthly_cost_limit(conn, caller.organization_id, project_id, hard=False)
    if found is None or found.id != alert_id:
        raise NotFound(f"There is no spend alert with the id '{alert_id}'.", param="alert_id")
    return found


def _limit(wanted: SetSpendAlert, percents: tuple[int, ...]) -> SetLimit:
    amount = wanted.threshold_amount * CENT_NANOS
    return SetLimit("cost_nanos", amount, "month", hard=False, alert_percents=percents)


def _spend_alert_wire(limit: LimitOut) -> SpendAlert:
    kind: Literal["organization.spend_alert", "project.spend_alert"] = (
        "organization.spend_alert" if limit.project_id is None else "project.spend_alert"
    )
    return SpendAlert(limit.id, limit.max // CENT_NANOS, kind)
