"""Every charge conforms to FOCUS 1.2, and the check of conformance finds a charge that does not."""

from __future__ import annotations

import datetime
from collections import Counter
from decimal import Decimal

import pytest

from gateway.db.billing.invoices import draft_invoice, issue_invoices
from gateway.db.ledger.rollups import roll_up_all
from gateway.db.pool import Database
from tests.gateway.exports.focus_rules import COLUMNS, Row, violations
from tests.gateway.exports.ledger import BEFORE, FORMULA, MONTH, Books, make_books
from tests.gateway.exports.reading import csv_rows, export, focus_rows


async def charges(books: Books, month: str = MONTH) -> list[Row]:
    content, _ = await export(books, "costs", "focus", month)
    return focus_rows(content)


@pytest.mark.parametrize("month", [MONTH, BEFORE])
async def test_every_charge_conforms(books: Books, month: str) -> None:
    rows = await charges(books, month)
    assert len(rows) > 500
    assert [(number, wrong) for number, row in enumerate(rows) for wrong in violations(row)] == []


async def test_every_kind_of_charge_is_there(books: Books) -> None:
    kinds = Counter((row["ChargeCategory"], row["ChargeClass"]) for row in await charges(books))
    assert set(kinds) == {("Usage", None), ("Usage", "Correction"), ("Adjustment", None), ("Adjustment", "Correction")}
    credits = [row for row in await charges(books, BEFORE) if row["ChargeCategory"] == "Credit"]
    assert len(credits) == 2 and all(Decimal(str(row["BilledCost"])) < 0 for row in credits)
    assert {row["ChargeDescription"] for row in credits} == {"@welcome"}


async def test_what_is_billed_differs_from_price_times_quantity_by_roundings_alone(books: Books) -> None:
    """The ledger rounds once per row, so a charge of n rows is off by n half nanos at most; discounts count as well."""
    discounted = 0
    for row in await charges(books):
        if row["ChargeCategory"] == "Usage":
            billed, contracted = Decimal(str(row["BilledCost"])), Decimal(str(row["ContractedCost"]))
            assert abs(billed - contracted) <= 20 * Decimal("1e-9")
            discounted += contracted < Decimal(str(row["ListCost"]))
    assert discounted > 100


async def test_ids_names_and_prices_are_what_they_are_elsewhere(books: Books) -> None:
    rows = [row for row in await charges(books) if row["ChargeCategory"] == "Usage"]
    assert {row["BillingAccountId"] for row in rows} == {books.organization_id}
    assert {row["SubAccountId"]: row["SubAccountName"] for row in rows}[books.acme] == FORMULA
    assert {row["ResourceId"] for row in rows} == {None, "adpt_pirate", "adpt_poet"}
    for sku in {row["SkuPriceId"] for row in rows}:
        of_sku = [row for row in rows if row["SkuPriceId"] == sku]
        assert len({(row["SkuId"], row["ListUnitPrice"]) for row in of_sku}) == 1, "one price, one parent"


async def test_charges_and_lines_of_an_invoice_bear_its_number_and_come_to_its_sum(database: Database) -> None:
    books = await make_books(database, num_rows=300)
    first = datetime.date(2025, 9, 1)
    before = await charges(books, BEFORE)
    async with database.transaction() as conn:
        await roll_up_all(conn)
        invoices = {invoice.project.id: invoice for invoice in await issue_invoices(conn, books.organization_id, first)}
        draft = await draft_invoice(conn, books.organization_id, books.acme, datetime.date(2025, 10, 1))
    assert await charges(books, BEFORE) == before, "issuing changes no file of a closed month"
    for project_id, invoice in invoices.items():
        of_invoice = [row for row in before if row["InvoiceId"] == invoice.number]
        assert {row["SubAccountId"] for row in of_invoice} == {project_id}
        assert sum(Decimal(str(row["BilledCost"])) for row in of_invoice) * 10**9 == invoice.due_nanos
        lines = csv_rows((await export(books, "invoice", "csv", BEFORE, project_id))[0])
        assert sum(int(line["cost_nanos"]) for line in lines) == invoice.due_nanos
        amounts = Counter(line.amount_nanos for line in invoice.lines)
        assert Counter(int(line["cost_nanos"]) for line in lines if line["num_tokens"]) == amounts
    lines = csv_rows((await export(books, "invoice", "csv", MONTH, books.acme))[0])
    assert sum(int(line["cost_nanos"]) for line in lines) == draft.due_nanos
    assert len([line for line in lines if line["line_item"] == "adjustment"]) == len(draft.adjustments) == 2


GOOD: Row = {
    column.name: None for column in COLUMNS
} | {
    "BilledCost": "0.3", "BillingAccountId": "org", "BillingAccountType": "Organization", "BillingCurrency": "USD",
    "BillingPeriodEnd": "2025-11-01T00:00:00Z", "BillingPeriodStart": "2025-10-01T00:00:00Z",
    "ChargeCategory": "Usage", "ChargeFrequency": "Usage-Based", "ChargePeriodEnd": "2025-10-03T00:00:00Z",
    "ChargePeriodStart": "2025-10-02T00:00:00Z", "ConsumedQuantity": "2000000", "ConsumedUnit": "Tokens",
    "ContractedCost": "0.3", "ContractedUnitPrice": "0.15", "EffectiveCost": "0.3", "InvoiceIssuerName": "x",
    "ListCost": "0.4", "ListUnitPrice": "0.2", "PricingCategory": "Standard", "PricingQuantity": "2",
    "PricingCurrency": "USD", "PricingCurrencyContractedUnitPrice": "0.15", "PricingCurrencyEffectiveCost": "0.3",
    "PricingCurrencyListUnitPrice": "0.2", "PricingUnit": "1000000 Tokens", "ProviderName": "x", "PublisherName": "x",
    "ServiceCategory": "AI and Machine Learning", "ServiceName": "x", "ServiceSubcategory": "Generative AI",
    "SkuId": "s", "SkuPriceId": "p", "SubAccountId": "a", "SubAccountName": "A", "SubAccountType": "Project",
}  # fmt: skip


def test_the_check_takes_a_good_row() -> None:
    assert list(violations(GOOD)) == []


@pytest.mark.parametrize(
    "wrong",
    [
        *({column.name: None} for column in COLUMNS if not column.nulls),
        *({column.name: "surely not allowed"} for column in COLUMNS if column.allowed or column.type != "String"),
        {"BilledCost": "+1"},
        {"BilledCost": "1,000"},
        {"BilledCost": "1E+3"},
        {"BillingCurrency": "usd"},
        {"ChargePeriodStart": "2025-10-02"},
        {"ChargePeriodStart": "2025-09-02T00:00:00Z"},
        {"ChargePeriodEnd": "2025-10-01T00:00:00Z"},
        {"ChargeCategory": "Tax"},
        {"ChargeCategory": "Credit"},
        {"ChargeCategory": "Purchase", "ConsumedQuantity": None, "ConsumedUnit": None},
        {"PricingCurrency": "EUR"},
        {"PricingCurrencyEffectiveCost": None},
        {"ConsumedUnit": None},
        {"ConsumedQuantity": None, "ConsumedUnit": None},
        {"PricingUnit": None},
        {"SkuId": None},
        {"SkuMeter": "m", "SkuId": None, "ChargeClass": "Correction"},
        {"ListCost": "0.5"},
        {"ContractedCost": "0.31"},
        {"ListUnitPrice": "-0.2", "ListCost": "-0.4"},
        {"ResourceId": "r"},
        {"SubAccountName": None},
        {"Tags": '{"lorikeet:a": {"b": 1}}'},
        {"Tags": '{"lorikeet:a": 1, "lorikeet:a": 2}'},
        {"Tags": '{"a": 1}'},
        {"SkuPriceDetails": '{"TokenType": "input"}'},
        {"ProviderName": " "},
    ],
    ids=str,
)
def test_the_check_finds_what_does_not_conform(wrong: Row) -> None:
    assert list(violations(GOOD | wrong)) != []


def test_the_check_finds_a_column_that_is_missing_or_too_many() -> None:
    assert list(violations({name: value for name, value in GOOD.items() if name != "Tags"})) == ["columns"]
    assert list(violations(GOOD | {"x_Own": "1"})) == ["columns"]
