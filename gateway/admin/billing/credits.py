"""A project's credits over HTTP, and its mode of payment: a prepaid balance is a limit like any other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import Controller, Request, get, post
from litestar.params import FromPath
from msgspec import Meta

from gateway.admin.access import LIST_QUERY, needs, read_body
from gateway.admin.common import UnixTime, audit_author, check_name, expiry_time, seconds_or_none, unix_seconds
from gateway.admin.organization.projects import active_project, existing_project
from gateway.admin.paging import Page, page_of_all, read_list_query
from gateway.admin.services import Caller, Services
from gateway.db.billing import credits
from gateway.db.billing.prices import currency_of
from gateway.db.organization import audit
from gateway.domain.billing.credits import Grant
from gateway.domain.billing.money import MAX_NANOS

if TYPE_CHECKING:
    from gateway.db.pool import Connection

Mode = Literal["prepaid", "postpaid"]
Reason = Annotated[str, Meta(min_length=1, max_length=500)]
"""The reason for a credit, as people write it. It is checked by `check_name` as well."""


class GrantCredit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Money that a project may spend."""

    amount_nanos: Annotated[int, Meta(ge=1, le=MAX_NANOS)]
    """The amount in billionths of the currency."""
    reason: Reason
    expires_at: UnixTime | None = None
    """Unix seconds; null never expires."""


class SetBilling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The way in which a project is to pay."""

    mode: Mode


class Credit(msgspec.Struct, frozen=True):
    """Money that was given to a project, and how much of it is used."""

    id: str
    amount_nanos: int
    """The granted amount, in billionths of the currency."""
    drawn_nanos: int
    """The part that closed months used, in billionths of the currency."""
    lapsed_nanos: int | None
    """The part that was left when the credit expired, in billionths of the currency; null before that."""
    reason: str
    created_at: int
    """Unix seconds."""
    expires_at: int | None
    """Unix seconds; null never expires."""
    object: Literal["organization.project.credit"] = "organization.project.credit"


class Billing(msgspec.Struct, frozen=True):
    """The way in which a project pays."""

    project_id: str
    mode: Mode
    """`postpaid` bills each month, `prepaid` refuses requests once the balance is used up."""
    currency: str
    balance_nanos: int
    """The credits that are left, in billionths of the currency: without what closed months used, what expired, and
    the cost of open months so far."""
    limit_id: str | None
    """The id of the limit that refuses requests of a prepaid project once the balance is used up."""
    object: Literal["organization.project.billing"] = "organization.project.billing"


class CreditController(Controller):
    """Endpoints for the credits of a project, and for the way in which the project pays."""

    path = "/projects/{project_id:str}"

    @get("/credits", opt=needs("billing.read", query=LIST_QUERY))
    async def list_credits(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Page[Credit]:
        """List the credits of a project in the order in which they are used."""
        query = read_list_query(request.query_params)
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            shown = [_wire(grant) for grant in await credits.list_grants(conn, caller.organization_id, project_id)]
        return page_of_all(shown, query)

    @post("/credits", status_code=200, opt=needs("billing.write", body=GrantCredit))
    async def grant_credit(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Credit:
        """Give a project credit."""
        wanted = await read_body(request, GrantCredit)
        check_name(wanted.reason, "reason")
        expires_at = expiry_time(wanted.expires_at)
        async with services.database.transaction() as conn:
            await active_project(conn, caller.organization_id, project_id)
            grant = await credits.grant_credit(
                conn,
                caller.organization_id,
                project_id,
                wanted.amount_nanos,
                reason=wanted.reason,
                expires_at=expires_at,
            )
            after = _wire(grant)
            await audit.record(
                conn, audit_author(caller), "credit.granted", grant.id, project_id=project_id, after=after
            )
        return after

    @get("/billing", opt=needs("billing.read"))
    async def get_billing(self, project_id: FromPath[str], services: Services, caller: Caller) -> Billing:
        """Return how a project pays, and its balance."""
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            return await _billing(conn, caller.organization_id, project_id)

    @post("/billing", status_code=200, opt=needs("billing.write", body=SetBilling))
    async def set_billing(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Billing:
        """Set whether a project pays in advance or afterwards."""
        wanted = await read_body(request, SetBilling)
        async with services.database.transaction() as conn:
            await active_project(conn, caller.organization_id, project_id)
            before = await _billing(conn, caller.organization_id, project_id)
            changed = await credits.set_prepaid(conn, caller.organization_id, project_id, wanted.mode == "prepaid")
            after = await _billing(conn, caller.organization_id, project_id)
            if changed:
                await audit.record(
                    conn,
                    audit_author(caller),
                    "billing.updated",
                    project_id,
                    project_id=project_id,
                    before=before,
                    after=after,
                )
        return after


async def _billing(conn: Connection, organization_id: str, project_id: str) -> Billing:
    limit_id = await credits.find_balance_limit(conn, organization_id, project_id)
    return Billing(
        project_id,
        "postpaid" if limit_id is None else "prepaid",
        await currency_of(conn, organization_id),
        await credits.current_balance(conn, organization_id, project_id),
        limit_id,
    )


def _wire(grant: Grant) -> Credit:
    return Credit(
        grant.id,
        grant.amount,
        grant.drawn,
        grant.lapsed,
        grant.reason,
        unix_seconds(grant.created_at),
        seconds_or_none(grant.expires_at),
    )
