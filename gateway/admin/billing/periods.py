"""Billing periods over HTTP: months are closed in their order, then invoiced, and never change after that."""

from __future__ import annotations

import datetime
import re
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from litestar import Controller, Request, get, post
from litestar.params import FromPath
from litestar.response import Response

from gateway.admin.access import LIST_QUERY, Nothing, needs, read_body
from gateway.admin.common import audit_author, seconds_or_none
from gateway.admin.paging import Page, page_of_all, read_list_query
from gateway.admin.services import Caller, Services
from gateway.db.billing import invoices, periods
from gateway.db.billing.deliveries import projects_without_customer
from gateway.db.billing.prices import currency_of
from gateway.db.ledger.rollups import catch_up
from gateway.db.organization import audit
from gateway.db.organization.organizations import lock_organization
from gateway.domain.billing.closing import next_month
from gateway.domain.billing.invoice import Invoice, Party
from gateway.domain.errors import Conflict, NotFound

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class Period(msgspec.Struct, frozen=True):
    """A billing period: one month."""

    id: str
    """The month, for example `2026-10`."""
    state: periods.State
    start_time: int
    """Unix seconds."""
    end_time: int
    """Unix seconds."""
    closed_at: int | None
    """Unix seconds; null while the month is open."""
    invoiced_at: int | None
    """Unix seconds; null until invoices were issued."""
    num_requests: int
    cost_nanos: int
    """The amount that the month bills, in billionths of the currency, corrections and adjustments included."""
    currency: str
    object: Literal["organization.billing_period"] = "organization.billing_period"


class ClosedPeriod(Period, frozen=True, kw_only=True):
    """A month that is closed."""

    projects_without_customer: list[Party]
    """Projects without a customer of Stripe: nobody is ever billed through Stripe for their usage of the month.
    Empty if no project of the organization has a customer of Stripe."""


class IssuedInvoices(msgspec.Struct, frozen=True):
    """The invoices of a month, or drafts before the invoices are issued."""

    data: list[Invoice]
    object: Literal["list"] = "list"


class PeriodController(Controller):
    """Endpoints for billing periods: each month is closed, then invoiced."""

    path = "/periods"

    @get(opt=needs("billing.read", query=LIST_QUERY))
    async def list_periods(self, request: Request[Any, Any, Any], services: Services, caller: Caller) -> Page[Period]:
        """List the billing periods, the newest first."""
        query = read_list_query(request.query_params)
        async with services.database.acquire() as conn:
            rows = await periods.list_periods(conn, caller.organization_id)
            currency = await currency_of(conn, caller.organization_id)
        shown = [Period(*_wire(row, currency)) for row in rows]
        return page_of_all(shown, query)

    @post("/{period:str}/close", status_code=200, opt=needs("billing.write", body=Nothing))
    async def close_period(
        self, period: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> ClosedPeriod:
        """Close a month: draw its credits, and let none of its rows change any more. A closed month stays as it is."""
        await read_body(request, Nothing)
        start = month_of(period)
        await catch_up(services.database)
        async with services.database.transaction() as conn:
            await lock_organization(conn, caller.organization_id)
            known = await periods.get_period(conn, caller.organization_id, start)
            if known is not None and known.closed_at is not None:
                return await _closed_period(conn, caller.organization_id, known)
            try:
                row = await periods.close_period(conn, caller.organization_id, start)
            except periods.CannotClose as error:
                raise Conflict(
                    f"The month {period} cannot be closed: {error}.", param="period", code="period_not_closable"
                ) from None
            closed = await _closed_period(conn, caller.organization_id, row)
            await audit.record(conn, audit_author(caller), "period.closed", period, after=closed)
            return closed

    @post("/{period:str}/invoices", status_code=200, opt=needs("billing.write", body=Nothing))
    async def issue_invoices(
        self, period: FromPath[str], request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Response[IssuedInvoices]:
        """Give the invoice of every project its number. Invoices that were issued before stay as they are."""
        await read_body(request, Nothing)
        start = month_of(period)
        async with services.database.transaction() as conn:
            await lock_organization(conn, caller.organization_id)
            known = await periods.get_period(conn, caller.organization_id, start)
            if known is None or known.closed_at is None:
                raise Conflict(
                    f"The month {period} is still open. Close the month first.", param="period", code="period_open"
                )
            if known.invoiced_at is None:
                issued = await invoices.issue_invoices(conn, caller.organization_id, start)
                numbers = {"invoices": [invoice.number for invoice in issued]}
                await audit.record(conn, audit_author(caller), "period.invoiced", period, after=numbers)
            return _listed(await invoices.list_documents(conn, caller.organization_id, start))

    @get("/{period:str}/invoices", opt=needs("billing.read"))
    async def list_invoices(
        self, period: FromPath[str], services: Services, caller: Caller
    ) -> Response[IssuedInvoices]:
        """List the invoices of every project for a month, or drafts before they are issued."""
        start = month_of(period)
        async with services.database.acquire() as conn:
            await existing_period(conn, caller.organization_id, start)
            return _listed(await invoices.list_documents(conn, caller.organization_id, start))


def month_of(period: str) -> datetime.date:
    """Return the first day of a month such as "2026-10". Raises NotFound: when the text is no such month."""
    if re.fullmatch(r"20[0-9]{2}-(0[1-9]|1[0-2])", period, re.ASCII) is None:
        raise NotFound(
            f"'{period}' is not a billing period. Billing periods are months, such as 2026-10.", param="period"
        )
    return datetime.date.fromisoformat(f"{period}-01")


async def existing_period(conn: Connection, organization_id: str, start: datetime.date) -> None:
    """Check that a month has a billing period.

    Raises NotFound: for a month before the first one or after the present one.
    """
    first, last = await periods.first_and_last(conn, organization_id)
    if not first <= start <= last:
        raise NotFound(
            f"There is no billing period {start:%Y-%m}. The billing periods are {first:%Y-%m} to {last:%Y-%m}.",
            param="period",
        )


async def _closed_period(conn: Connection, organization_id: str, row: periods.PeriodRow) -> ClosedPeriod:
    without = await projects_without_customer(conn, organization_id, row.start)
    shown = _wire(row, await currency_of(conn, organization_id))
    return ClosedPeriod(*shown, projects_without_customer=[Party(*each) for each in without])


def _listed(documents: list[bytes]) -> Response[Any]:
    """Return a reply with `IssuedInvoices`, the documents of which are sent as stored."""
    content = {"data": [msgspec.Raw(document) for document in documents], "object": "list"}
    return Response(msgspec.json.encode(content), media_type="application/json")


def _wire(row: periods.PeriodRow, currency: str) -> tuple[Any, ...]:
    """Return the fields of a Period."""
    return (
        f"{row.start:%Y-%m}",
        row.state,
        _start_of(row.start),
        _start_of(next_month(row.start)),
        seconds_or_none(row.closed_at),
        seconds_or_none(row.invoiced_at),
        row.num_requests,
        row.cost_nanos,
        currency,
    )


def _start_of(day: datetime.date) -> int:
    return int(datetime.datetime.combine(day, datetime.time(), datetime.UTC).timestamp())
