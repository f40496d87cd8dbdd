"""FOCUS 1.2 as rules: every column with its type, nulls and allowed values, and the rules about several columns.

Written from the specification, not from the code that makes the rows.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Literal, NamedTuple

Type = Literal["String", "Decimal", "Time", "Currency", "KeyValue", "Unit"]
Row = dict[str, str | None]

CATEGORIES = ("Usage", "Purchase", "Tax", "Credit", "Adjustment")
SERVICE_CATEGORIES = (
    "AI and Machine Learning", "Analytics", "Business Applications", "Compute", "Databases", "Developer Tools",
    "Multicloud", "Identity", "Integration", "Internet of Things", "Management and Governance", "Media", "Migration",
    "Mobile", "Networking", "Security", "Storage", "Web", "Other",
)  # fmt: skip


class Column(NamedTuple):
    name: str
    nulls: bool
    type: Type = "String"
    allowed: tuple[str, ...] = ()


COLUMNS = (
    Column("AvailabilityZone", True),
    Column("BilledCost", False, "Decimal"),
    Column("BillingAccountId", False),
    Column("BillingAccountName", True),
    Column("BillingAccountType", False),
    Column("BillingCurrency", False, "Currency"),
    Column("BillingPeriodEnd", False, "Time"),
    Column("BillingPeriodStart", False, "Time"),
    Column("CapacityReservationId", True),
    Column("CapacityReservationStatus", True, allowed=("Used", "Unused")),
    Column("ChargeCategory", False, allowed=CATEGORIES),
    Column("ChargeClass", True, allowed=("Correction",)),
    Column("ChargeDescription", True),
    Column("ChargeFrequency", False, allowed=("One-Time", "Recurring", "Usage-Based")),
    Column("ChargePeriodEnd", False, "Time"),
    Column("ChargePeriodStart", False, "Time"),
    Column("CommitmentDiscountCategory", True, allowed=("Spend", "Usage")),
    Column("CommitmentDiscountId", True),
    Column("CommitmentDiscountName", True),
    Column("CommitmentDiscountQuantity", True, "Decimal"),
    Column("CommitmentDiscountStatus", True, allowed=("Used", "Unused")),
    Column("CommitmentDiscountType", True),
    Column("CommitmentDiscountUnit", True, "Unit"),
    Column("ConsumedQuantity", True, "Decimal"),
    Column("ConsumedUnit", True, "Unit"),
    Column("ContractedCost", False, "Decimal"),
    Column("ContractedUnitPrice", True, "Decimal"),
    Column("EffectiveCost", False, "Decimal"),
    Column("InvoiceId", True),
    Column("InvoiceIssuerName", False),
    Column("ListCost", False, "Decimal"),
    Column("ListUnitPrice", True, "Decimal"),
    Column("PricingCategory", True, allowed=("Standard", "Dynamic", "Committed", "Other")),
    Column("PricingCurrency", True, "Currency"),
    Column("PricingCurrencyContractedUnitPrice", True, "Decimal"),
    Column("PricingCurrencyEffectiveCost", True, "Decimal"),
    Column("PricingCurrencyListUnitPrice", True, "Decimal"),
    Column("PricingQuantity", True, "Decimal"),
    Column("PricingUnit", True, "Unit"),
    Column("ProviderName", False),
    Column("PublisherName", False),
    Column("RegionId", True),
    Column("RegionName", True),
    Column("ResourceId", True),
    Column("ResourceName", True),
    Column("ResourceType", True),
    Column("ServiceCategory", False, allowed=SERVICE_CATEGORIES),
    Column("ServiceName", False),
    Column("ServiceSubcategory", False),
    Column("SkuId", True),
    Column("SkuMeter", True),
    Column("SkuPriceDetails", True, "KeyValue"),
    Column("SkuPriceId", True),
    Column("SubAccountId", True),
    Column("SubAccountName", True),
    Column("SubAccountType", True),
    Column("Tags", True, "KeyValue"),
)

_NUMERIC = re.compile(r"-?\d+(\.\d+)?(E-?\d+)?")
_UNIT = re.compile(r"(\d+ )?[A-Z][A-Za-z]*s")


def _is_time(text: str) -> bool:
    try:
        datetime.datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        return False
    return True


def _is_key_value(text: str) -> bool:
    try:
        pairs = json.loads(text, object_pairs_hook=list)
    except json.JSONDecodeError:
        return False
    keys = [key for key, _ in pairs]
    return len(set(keys)) == len(keys) and not any(isinstance(value, list | dict) for _, value in pairs)


CHECKS: dict[Type, Callable[[str], bool]] = {
    "String": lambda text: text.strip() != "",
    "Decimal": lambda text: _NUMERIC.fullmatch(text) is not None,
    "Time": _is_time,
    "Currency": lambda text: re.fullmatch(r"[A-Z]{3}", text) is not None,
    "KeyValue": _is_key_value,
    "Unit": lambda text: _UNIT.fullmatch(text) is not None,
}


def violations(row: Row) -> Iterator[str]:
    """Yield the names of the FOCUS rules that a row breaks."""
    if list(row) != [column.name for column in COLUMNS]:
        yield "columns"
        return
    alone = list(_faults_of_columns(row))
    yield from alone or _faults_between_columns(row)


def _faults_of_columns(row: Row) -> Iterator[str]:
    for column in COLUMNS:
        value = row[column.name]
        if value is None:
            if not column.nulls:
                yield f"{column.name}: null"
        elif not CHECKS[column.type](value) or (column.allowed and value not in column.allowed):
            yield f"{column.name}: {value!r}"


def _faults_between_columns(row: Row) -> Iterator[str]:
    category, is_correction = row["ChargeCategory"], row["ChargeClass"] == "Correction"
    is_priced = category in ("Usage", "Purchase") and not is_correction
    for name in ("ContractedUnitPrice", "ListUnitPrice", "PricingCategory", "PricingQuantity", "SkuId", "SkuPriceId"):
        if is_priced and row[name] is None:
            yield f"{name}: null in a charge of usage"
        if category == "Tax" and row[name] is not None:
            yield f"{name}: not null in a tax"
    if category != "Usage" and row["ConsumedQuantity"] is not None:
        yield "ConsumedQuantity: not null in a charge that is no usage"
    if category == "Usage" and not is_correction and row["ConsumedQuantity"] is None:
        yield "ConsumedQuantity: null in a charge of usage"
    for name, depends_on in (
        ("ConsumedUnit", "ConsumedQuantity"),
        ("PricingUnit", "PricingQuantity"),
        ("ResourceType", "ResourceId"),
        ("SubAccountName", "SubAccountId"),
        ("SubAccountType", "SubAccountId"),
        ("BillingAccountType", "BillingAccountId"),
    ):
        if (row[name] is None) != (row[depends_on] is None):
            yield f"{name}: null where {depends_on} is not, or the other way round"
    for name, depends_on in (("SkuMeter", "SkuId"), ("SkuPriceDetails", "SkuPriceId"), ("ResourceName", "ResourceId")):
        if row[name] is not None and row[depends_on] is None:
            yield f"{name}: not null without {depends_on}"
    for unit_price, cost in (("ListUnitPrice", "ListCost"), ("ContractedUnitPrice", "ContractedCost")):
        if row[unit_price] is not None:
            if _number(row, unit_price) < 0:
                yield f"{unit_price}: negative"
            is_product = row["PricingQuantity"] is not None and not is_correction
            if is_product and _number(row, unit_price) * _number(row, "PricingQuantity") != _number(row, cost):
                yield f"{cost}: not {unit_price} times PricingQuantity"
    costs = {_number(row, name) for name in ("BilledCost", "EffectiveCost", "ListCost", "ContractedCost")}
    if category in ("Credit", "Adjustment") and len(costs) > 1:
        yield "costs: different in a charge without a unit price"
    for name in ("EffectiveCost", "ListUnitPrice", "ContractedUnitPrice"):  # priced and billed in one currency
        if row[f"PricingCurrency{name}"] != row[name]:
            yield f"PricingCurrency{name}: not {name}"
    if row["PricingCurrency"] != row["BillingCurrency"]:
        yield "PricingCurrency: not BillingCurrency"
    if category == "Purchase" and row["ChargeFrequency"] == "Usage-Based":
        yield "ChargeFrequency: Usage-Based in a purchase"
    for start, end in (("BillingPeriodStart", "BillingPeriodEnd"), ("ChargePeriodStart", "ChargePeriodEnd")):
        if not str(row[start]) < str(row[end]):
            yield f"{end}: not after {start}"
    is_within = str(row["BillingPeriodStart"]) <= str(row["ChargePeriodStart"]) < str(row["BillingPeriodEnd"])
    if not is_within and not is_correction:
        yield "ChargePeriodStart: outside of the billing period without being a correction"
    yield from _faults_of_keys(row)


def _faults_of_keys(row: Row) -> Iterator[str]:
    for key in json.loads(row["SkuPriceDetails"] or "{}"):
        if not re.fullmatch(r"x_[A-Z][A-Za-z]*", key):
            yield f"SkuPriceDetails: {key} is not Pascal case with x_"
    for key in json.loads(row["Tags"] or "{}"):
        if not key.startswith("lorikeet:"):
            yield f"Tags: {key} has no provider's prefix"


def _number(row: Row, name: str) -> Decimal:
    value = row[name]
    assert value is not None
    return Decimal(value)
