"""The price book over HTTP: versions, each complete; a new one takes effect from its time on and is never changed."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from litestar import Controller, Request, delete, get, post
from litestar.params import FromPath
from msgspec import Meta

from gateway.admin.access import LIST_QUERY, needs, read_body
from gateway.admin.common import UnixTime, audit_author, unix_seconds
from gateway.admin.paging import Page, page, read_list_query, unknown_cursor, wrong_value
from gateway.admin.services import Caller, Services
from gateway.db.billing import prices
from gateway.db.organization import audit, projects
from gateway.db.organization.organizations import lock_organization
from gateway.domain.billing.book import ANY, TIERS, Entry
from gateway.domain.billing.pricing import WHOLE_BASIS_POINTS
from gateway.domain.errors import Conflict, NotFound

if TYPE_CHECKING:
    from gateway.db.pool import Connection

MAX_ENTRIES = 1000
MAX_DISCOUNTS = 1000

Nanos = Annotated[int, Meta(ge=0, le=10**15)]
Label = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^(\*|[A-Za-z0-9._-]+)$")]


class PriceIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The price of tokens that match the model, adapter class and service tier.

    If several entries match, the one that names a model wins over the others, then the one that names an adapter class,
    then the one that names a service tier.
    """

    input_nanos_per_million: Nanos
    """The price of a million input tokens, in billionths of the currency."""
    output_nanos_per_million: Nanos
    """The price of a million output tokens, in billionths of the currency."""
    cached_input_nanos_per_million: Nanos | None = None
    """The price of a million cached input tokens, in billionths of the currency. It is not higher than the price of
    input, and equal where it is left out."""
    model: Annotated[str, Meta(min_length=1, max_length=512)] = ANY
    """The id of a model or of its base; `*` for any."""
    adapter_class: Label = ANY
    """`none` for the base model itself, `default` for adapters without a class of their own, or the name of a class;
    `*` for any."""
    service_tier: Label = ANY
    """The service tier of the request; `*` for any."""


class Discount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A discount on all usage of a project."""

    project_id: Annotated[str, Meta(min_length=1, max_length=64)]
    basis_points: Annotated[int, Meta(ge=1, le=WHOLE_BASIS_POINTS)]
    """The discount in hundredths of a percent."""


class SetPrices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A new version of all prices."""

    currency: Annotated[str, Meta(pattern="^[a-z]{3}$")]
    """The currency of all amounts. It cannot be changed once it is set."""
    entries: Annotated[tuple[PriceIn, ...], Meta(max_length=MAX_ENTRIES)]
    discounts: Annotated[tuple[Discount, ...], Meta(max_length=MAX_DISCOUNTS)] = ()
    effective_at: UnixTime | None = None
    """Unix seconds from which the prices hold; as soon as possible where this is left out."""


class PriceOut(msgspec.Struct, frozen=True):
    """Prices of a million tokens of a model, an adapter class and a service tier, in billionths of the currency."""

    model: str
    adapter_class: str
    """The price class of the adapter."""
    service_tier: str
    input_nanos_per_million: int
    cached_input_nanos_per_million: int
    output_nanos_per_million: int


class PriceVersion(msgspec.Struct, frozen=True):
    """All prices from a moment on."""

    id: str
    version: int
    """The number of the version."""
    currency: str
    effective_at: int
    """Unix seconds from which the prices hold."""
    created_at: int
    """Unix seconds."""
    entries: list[PriceOut]
    discounts: list[Discount]
    object: Literal["organization.price_version"] = "organization.price_version"


class WithdrawnPrices(msgspec.Struct, frozen=True):
    """A version of the prices that was withdrawn before it was in force."""

    id: str
    deleted: Literal[True] = True
    object: Literal["organization.price_version.deleted"] = "organization.price_version.deleted"


class PriceController(Controller):
    """Endpoints for the versions of the prices."""

    path = "/prices"

    @get(opt=needs("billing.read", query=LIST_QUERY))
    async def list_prices(
        self, request: Request[Any, Any, Any], services: Services, caller: Caller
    ) -> Page[PriceVersion]:
        """List the versions of the prices, the newest first."""
        query = read_list_query(request.query_params)
        async with services.database.acquire() as conn:
            if query.after and not await prices.version_exists(conn, caller.organization_id, query.after):
                raise unknown_cursor(query.after)
            rows = await prices.list_versions(conn, caller.organization_id, after=query.after, limit=query.limit + 1)
        return page([_wire(row) for row in rows], query.limit)

    @post(status_code=200, opt=needs("billing.write", body=SetPrices))
    async def set_prices(self, request: Request[Any, Any, Any], services: Services, caller: Caller) -> PriceVersion:
        """Set a new version of the prices."""
        wanted = await read_body(request, SetPrices)
        entries = _entries(wanted)
        async with services.database.transaction() as conn:
            await lock_organization(conn, caller.organization_id)
            discounts = await _discounts(conn, caller.organization_id, wanted)
            before = await prices.list_versions(conn, caller.organization_id, limit=1)
            try:
                stored = await prices.add_version(
                    conn,
                    caller.organization_id,
                    currency=wanted.currency,
                    entries=entries,
                    discounts=discounts,
                    effective_at=_instant(wanted.effective_at),
                )
            except prices.InvalidPriceVersion as error:
                raise wrong_value(error.field, str(error)) from None
            after = _wire(stored)
            await audit.record(
                conn,
                audit_author(caller),
                "prices.set",
                stored.id,
                before=_wire(before[0]) if before else None,
                after=after,
            )
        return after

    @delete("/{version_id:str}", status_code=200, opt=needs("billing.write"))
    async def withdraw_prices(self, version_id: FromPath[str], services: Services, caller: Caller) -> WithdrawnPrices:
        """Withdraw a version of the prices that is not in force yet."""
        async with services.database.transaction() as conn:
            await lock_organization(conn, caller.organization_id)
            try:
                gone = await prices.withdraw_version(conn, caller.organization_id, version_id)
            except prices.InForce:
                raise Conflict(
                    "This version of the prices is in force, was in force, or will be within "
                    f"{prices.LEAD.seconds} seconds, and stays. Set a new version instead.",
                    param="version_id",
                    code="prices_in_force",
                ) from None
            if gone is None:
                raise NotFound(f"There are no prices with the id '{version_id}'.", param="version_id")
            await audit.record(conn, audit_author(caller), "prices.withdrawn", version_id, before=_wire(gone))
        return WithdrawnPrices(version_id)


def _entries(wanted: SetPrices) -> list[Entry]:
    """Return the entries of new prices.

    Raises InvalidRequest: when an entry is wrong or there twice; the error names the entry's field.
    """
    entries: dict[tuple[str, str, str], Entry] = {}
    for place, each in enumerate(wanted.entries):
        cached = each.cached_input_nanos_per_million
        if cached is None:
            cached = each.input_nanos_per_million
        if cached > each.input_nanos_per_million:
            param = f"entries[{place}].cached_input_nanos_per_million"
            raise wrong_value(param, "the price of cached input must not be higher than the price of input")
        if each.service_tier not in (*TIERS, ANY):
            raise wrong_value(f"entries[{place}].service_tier", f"expected one of {', '.join(TIERS)}, or {ANY} for all")
        if "\0" in each.model:
            raise wrong_value(f"entries[{place}].model", "it must not hold a NUL character")
        entry = Entry(
            each.model,
            each.adapter_class,
            each.service_tier,
            each.input_nanos_per_million,
            cached,
            each.output_nanos_per_million,
        )
        if entry.identity in entries:
            raise wrong_value(
                f"entries[{place}]", "an entry before this one has the same model, adapter class and service tier"
            )
        entries[entry.identity] = entry
    return list(entries.values())


async def _discounts(conn: Connection, organization_id: str, wanted: SetPrices) -> dict[str, int]:
    """Return the discounts of new prices, in basis points by the project's id.

    Raises InvalidRequest: when a project is named twice, or the organization has no project with an id.
    """
    discounts: dict[str, int] = {}
    for place, each in enumerate(wanted.discounts):
        param = f"discounts[{place}].project_id"
        if each.project_id in discounts:
            raise wrong_value(param, "another discount in this list is for the same project")
        if "\0" in each.project_id or await projects.get_project(conn, organization_id, each.project_id) is None:
            raise wrong_value(param, f"no project has the id '{each.project_id}'")
        discounts[each.project_id] = each.basis_points
    return discounts


def _instant(unix_s: int | None) -> datetime.datetime | None:
    return None if unix_s is None else datetime.datetime.fromtimestamp(unix_s, datetime.UTC)


def _wire(stored: prices.StoredVersion) -> PriceVersion:
    version = stored.version
    return PriceVersion(
        stored.id,
        version.version,
        version.currency,
        version.effective_ns // 10**9,
        unix_seconds(stored.created_at),
        [PriceOut(*msgspec.structs.astuple(entry)) for entry in version.entries],
        [Discount(project_id, basis_points) for project_id, basis_points in version.discounts.items()],
    )
