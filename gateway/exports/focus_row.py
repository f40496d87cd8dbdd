"""The columns of FOCUS 1.2, in the order of their names.

See FinOps Open Cost and Usage Specification, https://focus.finops.org. Dates and JSON are text in the formats that it
prescribes; None is null.
"""

from __future__ import annotations

from decimal import Decimal

import msgspec

SPEC_VERSION = "1.2"


class FocusRow(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """One charge.

    Columns without a counterpart in this product (regions, commitments, capacity reservations) are null in every row;
    prices are in the bill's currency.
    """

    availability_zone: str | None = None
    billed_cost: Decimal
    billing_account_id: str
    billing_account_name: str
    billing_account_type: str
    billing_currency: str
    billing_period_end: str
    billing_period_start: str
    capacity_reservation_id: str | None = None
    capacity_reservation_status: str | None = None
    charge_category: str
    charge_class: str | None
    charge_description: str
    charge_frequency: str
    charge_period_end: str
    charge_period_start: str
    commitment_discount_category: str | None = None
    commitment_discount_id: str | None = None
    commitment_discount_name: str | None = None
    commitment_discount_quantity: Decimal | None = None
    commitment_discount_status: str | None = None
    commitment_discount_type: str | None = None
    commitment_discount_unit: str | None = None
    consumed_quantity: Decimal | None = None
    consumed_unit: str | None = None
    contracted_cost: Decimal
    contracted_unit_price: Decimal | None = None
    effective_cost: Decimal
    invoice_id: str | None
    invoice_issuer_name: str
    list_cost: Decimal
    list_unit_price: Decimal | None = None
    pricing_category: str | None = None
    pricing_currency: str | None = None
    pricing_currency_contracted_unit_price: Decimal | None = None
    pricing_currency_effective_cost: Decimal | None = None
    pricing_currency_list_unit_price: Decimal | None = None
    pricing_quantity: Decimal | None = None
    pricing_unit: str | None = None
    provider_name: str
    publisher_name: str
    region_id: str | None = None
    region_name: str | None = None
    resource_id: str | None
    resource_name: str | None
    resource_type: str | None
    service_category: str
    service_name: str
    service_subcategory: str
    sku_id: str | None = None
    sku_meter: str | None = None
    sku_price_details: str | None = None
    sku_price_id: str | None = None
    sub_account_id: str
    sub_account_name: str
    sub_account_type: str
    tags: str | None
