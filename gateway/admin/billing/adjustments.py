"""An operator's adjustments over HTTP: a charge or a refund of a tenant, with its reason and the corrected usage."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import Controller, Request, get, post
from litestar.params import FromPath
from msgspec import Meta

from gateway.admin.access import LIST_QUERY, needs, read_body
from gateway.admin.billing.credits import Reason
from gateway.admin.common import audit_author, check_name, unix_seconds
from gateway.admin.organization.projects import active_project, existing_project
from gateway.admin.paging import Page, page_of_all, read_list_query, wrong_value
from gateway.admin.services import Caller, Services
from gateway.db.billing import adjustments
from gateway.db.organization import audit
from gateway.domain.billing.money import MAX_NANOS

if TYPE_CHECKING:
    from gateway.db.pool import Connection

Period = Annotated[str, Meta(pattern=r"^20[0-9]{2}-(0[1-9]|1[0-2])$")]


class Adjust(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A correction of the amount that a tenant pays."""

    direction: Literal["charge", "refund"]
    """`charge` adds the amount to what the tenant pays, `refund` takes the amount from it."""
    amount_nanos: Annotated[int, Meta(ge=1, le=MAX_NANOS)]
    """The amount in billionths of the currency."""
    reason: Reason
    corrects_period: Period | None = None
    """The closed month that is corrected, for example `2026-10`. It may be left out if corrects_request_id
    is given."""
    corrects_request_id: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    """The request whose cost is corrected."""


class AdjustmentOut(msgspec.Struct, frozen=True):
    """A correction of the amount that a tenant pays."""

    id: str
    cost_nanos: int
    """The amount in billionths of the currency; negative for a refund."""
    reason: str
    created_at: int
    """Unix seconds."""
    period: str
    """The month that bills the correction: the first month that was open."""
    corrects_period: str | None
    """The closed month that is corrected; null for a correction of no month."""
    corrects_request_id: str | None
    """The request whose cost is corrected; null where no request was named."""
    object: Literal["organization.project.adjustment"] = "organization.project.adjustment"


class AdjustmentController(Controller):
    """Endpoints for corrections of the amounts that a project pays."""

    path = "/projects/{project_id:str}/adjustments"

    @get(opt=needs("billing.read", query=LIST_QUERY))
    async def list_adjustments(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Page[AdjustmentOut]:
        """List the adjustments of a project, the oldest first."""
        query = read_list_query(request.query_params)
        async with services.database.acquire() as conn:
            await existing_project(conn, caller.organization_id, project_id)
            rows = await adjustments.list_adjustments(conn, caller.organization_id, project_id)
        shown = [_wire(row) for row in rows]
        return page_of_all(shown, query)

    @post(status_code=200, opt=needs("billing.write", body=Adjust))
    async def adjust(
        self, project_id: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> AdjustmentOut:
        """Add an adjustment, which corrects the amount that a project pays."""
        wanted = await read_body(request, Adjust)
        check_name(wanted.reason, "reason")
        async with services.database.transaction() as conn:
            await active_project(conn, caller.organization_id, project_id)
            row = await adjustments.write_adjustment(
                conn,
                caller.organization_id,
                project_id,
                wanted.amount_nanos if wanted.direction == "charge" else -wanted.amount_nanos,
                reason=wanted.reason,
                corrects_period=await _corrected(conn, caller.organization_id, project_id, wanted),
                corrects_request_id=wanted.corrects_request_id,
            )
            after = _wire(row)
            await audit.record(
                conn, audit_author(caller), "adjustment.created", row.id, project_id=project_id, after=after
            )
        return after


async def _corrected(conn: Connection, organization_id: str, project_id: str, wanted: Adjust) -> datetime.date | None:
    """Return the closed month that an adjustment corrects, None for the month that is open.

    Raises InvalidRequest: when the month is not closed, the project has no such request, or the request is of another
    month.
    """
    period = None
    if wanted.corrects_period is not None:
        period = datetime.date.fromisoformat(f"{wanted.corrects_period}-01")
        if not await adjustments.is_closed(conn, organization_id, period):
            raise wrong_value("corrects_period", "this month is not closed")
    if wanted.corrects_request_id is None:
        return period
    billed = None
    if "\0" not in wanted.corrects_request_id:
        billed = await adjustments.period_of_request(conn, organization_id, project_id, wanted.corrects_request_id)
    if billed is None:
        raise wrong_value("corrects_request_id", "the project has no billed request with this id")
    if period not in (None, billed):
        raise wrong_value("corrects_period", f"the request was billed in {billed:%Y-%m}")
    return billed if await adjustments.is_closed(conn, organization_id, billed) else None


def _wire(row: adjustments.Adjustment) -> AdjustmentOut:
    return AdjustmentOut(
        row.id,
        row.cost_nanos,
        row.reason,
        unix_seconds(row.created_at),
        f"{row.period:%Y-%m}",
        f"{row.corrects_period:%Y-%m}" if row.corrects_period else None,
        row.corrects_request_id,
    )
