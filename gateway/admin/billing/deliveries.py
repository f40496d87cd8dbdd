"""Scheduled deliveries of exports over HTTP: their destinations and runs. Secrets go in and never come out."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import Controller, Request, delete, get, post
from litestar.params import FromPath
from msgspec import Meta

from gateway.admin.access import LIST_QUERY, needs, read_body
from gateway.admin.common import Name, audit_author, check_name, seconds_or_none, unix_seconds
from gateway.admin.paging import Page, page, read_list_query, unknown_cursor, wrong_value
from gateway.admin.services import Caller, Services
from gateway.db.billing import deliveries
from gateway.db.billing.deliveries import WATCHED_DAYS, DeliveryRow, RunRow
from gateway.db.billing.periods import first_and_last
from gateway.db.organization import audit
from gateway.db.organization.organizations import lock_organization
from gateway.domain.errors import InvalidRequest, NotFound
from gateway.exports.destination import (
    Destination,
    Schedule,
    WrongDestination,
    check_destination,
    destination_text,
    split_secret,
)
from gateway.exports.request import FORMATS_OF, Format, Kind, WrongExport, parse_span

if TYPE_CHECKING:
    from gateway.db.pool import Connection

MAX_DELIVERIES = 50
NUM_RUNS_SHOWN = 100

Period = Annotated[str, Meta(min_length=1, max_length=10)]


class SetDelivery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A delivery to create, or to change if a delivery of this name exists."""

    name: Name
    kind: Kind
    format: Format
    schedule: Schedule
    destination: Destination
    from_period: Period | None = None
    """The first day or month to deliver. Left out, a new delivery begins with the present one, and a changed
    delivery keeps its own. A daily delivery can begin at most 62 days ago; earlier days can be exported."""


class Delivery(msgspec.Struct, frozen=True):
    """Exports that the server writes to a destination on a schedule."""

    id: str
    name: str
    kind: str
    format: str
    schedule: str
    destination: dict[str, Any]
    location: str
    """A folder within the server's data folder, or the URL of a bucket."""
    from_period: str
    """The first day or month that is delivered."""
    created_at: int
    """Unix seconds."""
    object: Literal["organization.delivery"] = "organization.delivery"


class DeliveryRun(msgspec.Struct, frozen=True):
    """The delivery of one day or month."""

    period: str
    """The day or the month, such as `2026-10-31` or `2026-10`."""
    attempts: int
    """The number of attempts so far."""
    due_at: int | None
    """Unix seconds of the next attempt; null once the run was delivered."""
    delivered_at: int | None
    """Unix seconds; null while the run was not delivered."""
    last_error: str | None
    """The reason why the last attempt failed."""
    object: Literal["organization.delivery.run"] = "organization.delivery.run"


class DeliveryWithRuns(msgspec.Struct, frozen=True):
    """A delivery with the latest runs."""

    delivery: Delivery
    runs: list[DeliveryRun]
    """The runs of the latest days or months, the last one first."""
    object: Literal["organization.delivery.runs"] = "organization.delivery.runs"


class DeletedDelivery(msgspec.Struct, frozen=True):
    """A delivery that was deleted."""

    id: str
    deleted: Literal[True] = True
    object: Literal["organization.delivery.deleted"] = "organization.delivery.deleted"


class DeliveryController(Controller):
    """Endpoints for scheduled deliveries of exports."""

    path = "/deliveries"

    @get(opt=needs("billing.read", query=LIST_QUERY))
    async def list_deliveries(
        self, request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Page[Delivery]:
        """List the deliveries."""
        query = read_list_query(request.query_params)
        async with services.database.acquire() as conn:
            known = {row.id for row in await deliveries.list_deliveries(conn, caller.organization_id)}
            if query.after and query.after not in known:
                raise unknown_cursor(query.after)
            rows = await deliveries.list_deliveries(
                conn, caller.organization_id, after=query.after, limit=query.limit + 1
            )
        return page([_delivery_wire(row) for row in rows], query.limit)

    @post(status_code=200, opt=needs("billing.write", body=SetDelivery))
    async def set_delivery(self, request: Request[Any, Any, Any], services: Services, caller: Caller) -> Delivery:
        """Create a delivery, or change the one of this name."""
        wanted = await read_body(request, SetDelivery)
        from_period = _check(wanted)
        destination, secret = split_secret(wanted.destination)
        sealed = None
        if secret is not None:
            sealed = services.secrets.seal(secret.encode(), "deliveries.secret", caller.organization_id, wanted.name)
        async with services.database.transaction() as conn:
            await lock_organization(conn, caller.organization_id)
            await _check_first(conn, caller.organization_id, wanted, from_period)
            before = {row.name: row for row in await deliveries.list_deliveries(conn, caller.organization_id)}
            if len(before) >= MAX_DELIVERIES and wanted.name not in before:
                raise InvalidRequest(
                    f"The organization already has {MAX_DELIVERIES} deliveries, the most there can be. Delete one."
                )
            row = await deliveries.set_delivery(
                conn,
                caller.organization_id,
                name=wanted.name,
                kind=wanted.kind,
                format=wanted.format,
                schedule=wanted.schedule,
                destination=destination,
                content_key=None if sealed is None else sealed.key_id,
                secret=None if sealed is None else sealed.data,
                from_period=from_period,
                move=wanted.from_period is not None,
            )
            old = before.get(wanted.name)
            event = "delivery.updated" if old else "delivery.created"
            await audit.record(
                conn,
                audit_author(caller),
                event,
                row.id,
                before=_delivery_wire(old) if old else None,
                after=_delivery_wire(row),
            )
        return _delivery_wire(row)

    @get("/{delivery_id:str}", opt=needs("billing.read"))
    async def get_delivery(self, delivery_id: FromPath[str], services: Services, caller: Caller) -> DeliveryWithRuns:
        """Return a delivery with its latest runs."""
        async with services.database.acquire() as conn:
            rows = await deliveries.list_deliveries(conn, caller.organization_id)
            row = next((row for row in rows if row.id == delivery_id), None)
            if row is None:
                raise _no_such(delivery_id)
            runs = await deliveries.list_runs(conn, caller.organization_id, delivery_id, NUM_RUNS_SHOWN)
        return DeliveryWithRuns(_delivery_wire(row), [_shown_run(run) for run in runs])

    @delete("/{delivery_id:str}", status_code=200, opt=needs("billing.write"))
    async def remove_delivery(self, delivery_id: FromPath[str], services: Services, caller: Caller) -> DeletedDelivery:
        """Delete a delivery."""
        async with services.database.transaction() as conn:
            row = await deliveries.remove_delivery(conn, caller.organization_id, delivery_id)
            if row is None:
                raise _no_such(delivery_id)
            await audit.record(conn, audit_author(caller), "delivery.deleted", row.id, before=_delivery_wire(row))
        return DeletedDelivery(delivery_id)


def _check(wanted: SetDelivery) -> datetime.date:
    """Check a wanted delivery and return the first day of its first period.

    Raises InvalidRequest: when a field is wrong; the error names the field.
    """
    check_name(wanted.name)
    if wanted.format not in FORMATS_OF[wanted.kind]:
        raise wrong_value("format", f"expected one of {', '.join(FORMATS_OF[wanted.kind])} for {wanted.kind}")
    if wanted.kind == "invoice" and wanted.schedule == "daily":
        raise wrong_value("schedule", "an invoice covers a whole month, so it is delivered monthly")
    try:
        check_destination(wanted.destination)
    except WrongDestination as error:
        raise wrong_value(f"destination.{error.field}", error.reason) from None
    try:
        first = parse_span(wanted.from_period).start if wanted.from_period else datetime.datetime.now(datetime.UTC)
    except WrongExport as error:
        raise wrong_value("from_period", error.reason) from None
    if wanted.schedule == "monthly":
        return first.date().replace(day=1)
    if first < datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=WATCHED_DAYS + 1):
        raise wrong_value("from_period", f"a daily delivery can begin at most {WATCHED_DAYS} days ago")
    return first.date()


async def _check_first(conn: Connection, organization_id: str, wanted: SetDelivery, from_period: datetime.date) -> None:
    """Check the first period of a monthly delivery.

    Raises InvalidRequest: when the period is before the organization's first month.
    """
    first, _ = await first_and_last(conn, organization_id)
    if wanted.from_period is not None and wanted.schedule == "monthly" and from_period < first:
        raise wrong_value("from_period", f"the organization's first month is {first:%Y-%m}")


def _no_such(delivery_id: str) -> NotFound:
    return NotFound(f"There is no delivery with the id '{delivery_id}'.", param="delivery_id")


def _delivery_wire(row: DeliveryRow) -> Delivery:
    return Delivery(
        id=row.id,
        name=row.name,
        kind=row.kind,
        format=row.format,
        schedule=row.schedule,
        destination=row.destination,
        location=destination_text(row.organization_id, row.destination),
        from_period=row.from_period.isoformat()[: 10 if row.schedule == "daily" else 7],
        created_at=unix_seconds(row.created_at),
    )


def _shown_run(row: RunRow) -> DeliveryRun:
    return DeliveryRun(
        period=row.period,
        attempts=row.attempts,
        due_at=None if row.delivered_at else unix_seconds(row.due_at),
        delivered_at=seconds_or_none(row.delivered_at),
        last_error=row.last_error,
    )
