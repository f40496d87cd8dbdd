"""Charges as rows of FOCUS 1.2: one per day, project, key, model, adapter, price and kind of tokens.

BilledCost and EffectiveCost are what the ledger holds, to the nano: it rounds once per request. ListCost and
ContractedCost are the unit price, before and after the project's discount, times the quantity, exactly, as the
specification wants it; so they differ from what is billed by those roundings.

A row is a Correction where it belongs to a month that was closed before it came. The billing account is the
organization, a sub account is a project, a resource is an adapter; keys and adapter versions are tags.
"""

from __future__ import annotations

import calendar
import datetime
from collections.abc import Mapping, Sequence
from decimal import Context, Decimal
from typing import Any

import msgspec

from gateway.db.billing.charges import ChargeRow
from gateway.exports.csv_file import CsvFile
from gateway.exports.focus_row import FocusRow
from gateway.exports.table import columns_of

PROVIDER = "Lorikeet"
PRICING_UNIT = "1000000 Tokens"
TAG_PREFIX = "lorikeet"
METERS = {"input": "Input Tokens", "cached_input": "Cached Input Tokens", "output": "Output Tokens"}

_EXACT = Context(prec=60)
_NANO = Decimal("1e-9")
_MILLIONTH = Decimal("1e-6")


class FocusNames(msgspec.Struct, frozen=True, kw_only=True):
    """The names of the things whose ids are in rows."""

    organization_id: str
    organization: str
    projects: Mapping[str, str]
    """The names of projects by id."""
    adapters: Mapping[str, str]
    """The names of adapters by id."""
    invoices: Mapping[str, str]
    """The numbers of invoices by project, which are fixed once the month is closed."""
    month: datetime.date
    """The first day of the billing period."""


class FocusFile:
    """The encoder of FOCUS, whose file is CSV."""

    def __init__(self, names: FocusNames) -> None:
        self._names = names
        self._csv = CsvFile(columns_of(FocusRow))

    def start(self) -> bytes:
        """Return the header line with the names of FOCUS's columns."""
        return self._csv.start()

    def encode(self, rows: Sequence[ChargeRow]) -> bytes:
        """Return one line of CSV for each charge, with its project's and key's names."""
        return self._csv.encode([focus_row(row, self._names) for row in rows])

    def finish(self) -> bytes:
        """Return no bytes: the last charge ends the file."""
        return b""


def focus_row(row: ChargeRow, names: FocusNames) -> FocusRow:
    """Return a charge as a row of FOCUS."""
    match row.line_item:
        case "credit":
            return _credit(row, names)
        case "adjustment":
            return _adjustment(row, names)
        case _:
            return _usage(row, names)


def _usage(row: ChargeRow, names: FocusNames) -> FocusRow:
    assert row.num_tokens is not None and row.list_price_nanos is not None
    meter = METERS[row.line_item]
    quantity = row.num_tokens * _MILLIONTH
    list_price = _EXACT.multiply(row.list_price_nanos, _NANO)
    contracted_price = _EXACT.multiply(list_price, 1 - (row.discount_basis_points or 0) * Decimal("1e-4"))
    base = row.model.partition(":")[0]
    sku = f"{base}/{row.adapter_class}/{row.service_tier}/{row.line_item}"
    billed = _EXACT.multiply(row.cost_nanos, _NANO)
    return FocusRow(
        **_common_fields(row.project_id, names, row.currency),
        **_day(row.date),
        **_resource(row, names),
        billed_cost=billed,
        effective_cost=billed,
        list_cost=_EXACT.multiply(list_price, quantity),
        contracted_cost=_EXACT.multiply(contracted_price, quantity),
        list_unit_price=list_price,
        contracted_unit_price=contracted_price,
        pricing_currency_list_unit_price=list_price,
        pricing_currency_contracted_unit_price=contracted_price,
        pricing_currency_effective_cost=billed,
        charge_category="Usage",
        charge_class="Correction" if row.corrects_period else None,
        charge_description=f"{meter} of {row.model}",
        charge_frequency="Usage-Based",
        consumed_quantity=Decimal(row.num_tokens),
        consumed_unit="Tokens",
        pricing_category="Standard",
        pricing_quantity=quantity,
        pricing_unit=PRICING_UNIT,
        sku_id=sku,
        sku_meter=meter,
        sku_price_id=f"{sku}/{row.model}/{row.price_version or 0}",
        sku_price_details=_json(
            {
                "x_AdapterClass": row.adapter_class,
                "x_PriceVersion": row.price_version or 0,
                "x_ServiceTier": row.service_tier,
                "x_TokenType": row.line_item,
            }
        ),
        tags=_json({f"{TAG_PREFIX}:api_key_id": row.api_key_id, f"{TAG_PREFIX}:model": row.model}),
    )


def _adjustment(row: ChargeRow, names: FocusNames) -> FocusRow:
    tags = {f"{TAG_PREFIX}:corrects_request_id": row.reference} if row.reference else None
    return FocusRow(
        **_common_fields(row.project_id, names, row.currency),
        **_day(row.date),
        **_resource(row, names),
        **_costs(row.cost_nanos),
        charge_category="Adjustment",
        charge_class="Correction" if row.corrects_period else None,
        charge_description=row.reason or "Adjustment",
        charge_frequency="One-Time",
        tags=_json(tags) if tags else None,
    )


def _credit(row: ChargeRow, names: FocusNames) -> FocusRow:
    """Return the charge of a credit: the amount that it paid is subtracted from the bill of the whole month."""
    start, end = _month(names.month)
    return FocusRow(
        **_common_fields(row.project_id, names, row.currency),
        **_costs(row.cost_nanos),
        charge_period_start=start,
        charge_period_end=end,
        **_resource(row, names),
        charge_category="Credit",
        charge_class=None,
        charge_description=row.reason or "Credit",
        charge_frequency="One-Time",
        tags=_json({f"{TAG_PREFIX}:credit_grant_id": row.reference}),
    )


def _common_fields(project_id: str, names: FocusNames, currency: str) -> dict[str, Any]:
    """Return the fields that every charge of a project has. A removed project that has no name shows its id."""
    start, end = _month(names.month)
    return {
        "billing_account_id": names.organization_id,
        "billing_account_name": names.organization,
        "billing_account_type": "Organization",
        "billing_currency": currency.upper(),
        "billing_period_start": start,
        "billing_period_end": end,
        "pricing_currency": currency.upper(),
        "invoice_id": names.invoices.get(project_id),
        "invoice_issuer_name": PROVIDER,
        "provider_name": PROVIDER,
        "publisher_name": PROVIDER,
        "service_category": "AI and Machine Learning",
        "service_name": PROVIDER,
        "service_subcategory": "Generative AI",
        "sub_account_id": project_id,
        "sub_account_name": names.projects.get(project_id) or project_id,
        "sub_account_type": "Project",
    }


def _resource(row: ChargeRow, names: FocusNames) -> dict[str, Any]:
    if row.adapter_id is None:
        return {"resource_id": None, "resource_name": None, "resource_type": None}
    return {
        "resource_id": row.adapter_id,
        "resource_name": names.adapters.get(row.adapter_id),
        "resource_type": "Adapter",
    }


def _costs(nanos: int) -> dict[str, Any]:
    """Return the four costs of a charge without a unit price, which are all equal."""
    cost = _EXACT.multiply(nanos, _NANO)
    return {
        "billed_cost": cost,
        "effective_cost": cost,
        "list_cost": cost,
        "contracted_cost": cost,
        "pricing_currency_effective_cost": cost,
    }


def _day(date: datetime.date) -> dict[str, Any]:
    return {"charge_period_start": _time(date), "charge_period_end": _time(date + datetime.timedelta(days=1))}


def _month(first: datetime.date) -> tuple[str, str]:
    days = calendar.monthrange(first.year, first.month)[1]
    return _time(first), _time(first + datetime.timedelta(days=days))


def _time(date: datetime.date) -> str:
    return f"{date.isoformat()}T00:00:00Z"


def _json(pairs: Mapping[str, str | int | None]) -> str:
    """Return the pairs as JSON, without those that have no value, in the order of the keys."""
    return msgspec.json.encode({key: value for key, value in sorted(pairs.items()) if value is not None}).decode()
