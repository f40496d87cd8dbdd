"""Spend limits in OpenAI's shape: the most that an organization or a project may cost per month.

A spend limit is the hard limit of cost per month on all models and keys. Limits that this shape cannot express are
served by `limits`.
Source: `spend_limit` of organizations and projects in OpenAI's Administration API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import Controller, Request, delete, get, post
from litestar.params import FromPath
from msgspec import UNSET, Meta, UnsetType

from gateway.admin.access import needs, read_body
from gateway.admin.limits.limits import LimitOut, SetLimit, delete_limit, limit_wire, store_limit
from gateway.admin.organization.projects import active_project, existing_project
from gateway.admin.services import Caller, Services
from gateway.db.limits import limits
from gateway.db.organization.organizations import lock_organization
from gateway.domain.errors import NotFound

if TYPE_CHECKING:
    from gateway.db.pool import Connection

CENT_NANOS = 10**7
MAX_CENTS = 2**62 // CENT_NANOS

Cents = Annotated[int, Meta(ge=1, le=MAX_CENTS)]


class UpdateSpendLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new spend limit."""

    threshold_amount: Cents
    """The most that a month may cost, in cents."""
    currency: Literal["USD"]
    interval: Literal["month"]


class Enforcement(msgspec.Struct, frozen=True):
    """The state of a spend limit."""

    status: Literal["inactive", "enforcing"]
    """`enforcing` once nothing is left of the limit, so that requests are refused."""


class SpendLimit(msgspec.Struct, frozen=True):
    """The most that a month may cost."""

    threshold_amount: int
    """The most that a month may cost, in cents."""
    enforcement: Enforcement
    object: Literal["organization.spend_limit", "project.spend_limit"]
    currency: Literal["USD"] = "USD"
    interval: Literal["month"] = "month"


class DeletedSpendLimit(msgspec.Struct, frozen=True):
    """A spend limit that was removed."""

    object: Literal["organization.spend_limit.deleted", "project.spend_limit.deleted"]
    deleted: Literal[True] = True


class ProjectSpendLimitController(Controller):
    """Endpoints for the spend limit of a project."""

    path = "/projects/{project_id:str}/spend_limit"

    @get(opt=needs("limits.read"))
    async def read_project_spend_limit(
        self, project_id: FromPath[str], services: Services, caller: Caller
    ) -> SpendLimit:
        """Return the spend limit of a project."""
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            return _spend_limit_wire(await _existing_limit(conn, caller.organization_id, project_id))

    @post(status_code=200, opt=needs("limits.write", body=UpdateSpendLimit))
    async def set_project_spend_limit(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> SpendLimit:
        """Set the spend limit of a project."""
        wanted = await read_body(request, UpdateSpendLimit)
        async with services.database.transaction() as conn:
            await active_project(conn, caller.organization_id, project_id)
            known = await monthly_cost_limit(conn, caller.organization_id, project_id, hard=True)
            return _spend_limit_wire(await store_limit(conn, _limit(wanted, known), caller, project_id))

    @delete(status_code=200, opt=needs("limits.write"))
    async def remove_project_spend_limit(
        self, project_id: FromPath[str], services: Services, caller: Caller
    ) -> DeletedSpendLimit:
        """Remove the spend limit of a project."""
        async with services.database.transaction() as conn:
            await existing_project(conn, caller.organization_id, project_id, lock=True)
            found = await _existing_limit(conn, caller.organization_id, project_id)
            await delete_limit(conn, caller, project_id, found.id)
        return DeletedSpendLimit("project.spend_limit.deleted")


class OrganizationSpendLimitController(Controller):
    """Endpoints for the spend limit of the organization."""

    path = "/spend_limit"

    @get(opt=needs("limits.read"))
    async def read_spend_limit(self, services: Services, caller: Caller) -> SpendLimit:
        """Return the spend limit of the organization."""
        async with services.database.acquire() as conn:
            return _spend_limit_wire(await _existing_limit(conn, caller.organization_id, None))

    @post(status_code=200, opt=needs("limits.write", body=UpdateSpendLimit))
    async def set_spend_limit(self, request: Request[Any, Any, Any], services: Services, caller: Caller) -> SpendLimit:
        """Set the spend limit of the organization."""
        wanted = await read_body(request, UpdateSpendLimit)
        async with services.database.transaction() as conn:
            await lock_organization(conn, caller.organization_id)
            known = await monthly_cost_limit(conn, caller.organization_id, None, hard=True)
            return _spend_limit_wire(await store_limit(conn, _limit(wanted, known), caller, None))

    @delete(status_code=200, opt=needs("limits.write"))
    async def remove_spend_limit(self, services: Services, caller: Caller) -> DeletedSpendLimit:
        """Remove the spend limit of the organization."""
        async with services.database.transaction() as conn:
            await lock_organization(conn, caller.organization_id)
            found = await _existing_limit(conn, caller.organization_id, None)
            await delete_limit(conn, caller, None, found.id)
        return DeletedSpendLimit("organization.spend_limit.deleted")


async def monthly_cost_limit(
    conn: Connection, organization_id: str, project_id: str | None, *, hard: bool
) -> LimitOut | None:
    """Return the limit of cost per month on all models and keys of the project, or of the organization itself.

    hard: True: the limit that refuses requests; False: the one that only alerts. None where there is no such limit.
    """
    for standing in await limits.list_limits(conn, organization_id, project_id):
        of = standing.limit
        if (of.unit, of.window, of.model, of.api_key_id, of.hard) == ("cost_nanos", "month", None, None, hard):
            return limit_wire(standing)
    return None


async def _existing_limit(conn: Connection, organization_id: str, project_id: str | None) -> LimitOut:
    found = await monthly_cost_limit(conn, organization_id, project_id, hard=True)
    if found is None:
        raise NotFound("No spend limit is set.")
    return found


def _limit(wanted: UpdateSpendLimit, known: LimitOut | None) -> SetLimit:
    """Return the limit to set, with the alerts of the present one, which this shape does not show.

    known: the present limit; None: there is none, and so no alerts.
    """
    percents: tuple[int, ...] | UnsetType = UNSET if known is None else known.alert_percents
    return SetLimit("cost_nanos", wanted.threshold_amount * CENT_NANOS, "month", alert_percents=percents)


def _spend_limit_wire(limit: LimitOut) -> SpendLimit:
    return SpendLimit(
        limit.max // CENT_NANOS,
        Enforcement("inactive" if limit.free else "enforcing"),
        "organization.spend_limit" if limit.project_id is None else "project.spend_limit",
    )
