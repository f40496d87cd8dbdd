"""Billing: prices, credits, adjustments, periods and invoices, exports and deliveries, for people who may and may
not."""

from __future__ import annotations

import datetime
import io
import re
import zipfile
from pathlib import Path

import asyncpg
from playwright.async_api import Locator, expect

from tests.browser.conftest import Visit
from tests.browser.house import BILLING, DAYS_OF_OLD_USAGE, OWNER, VIEWER, BrowserHouse
from tests.browser.watched import WatchedPage
from tests.gateway.live import BASE


def button(page: WatchedPage, name: str) -> Locator:
    return page.page.get_by_role("button", name=name, exact=True)


def dialog(page: WatchedPage) -> Locator:
    return page.page.get_by_role("dialog")


async def test_prices_are_set_and_withdrawn_before_they_are_in_force(visit: Visit) -> None:
    page = await visit(BILLING)
    await page.open("usage/prices")
    await expect(page.page.get_by_role("table", name="Prices of version 1")).to_contain_text("Any model")
    await button(page, "New prices").click()
    assert await page.violations() == []
    await dialog(page).get_by_label("Input of price 1", exact=True).fill("a lot")
    await dialog(page).get_by_label("Adapter class of price 1").fill("two words")
    await button(page, "Add a discount").click()
    await dialog(page).get_by_label("Percent of discount 1").fill("120")
    await button(page, "Set prices").click()
    await expect(dialog(page)).to_contain_text("Amounts are such as 0.25")
    await expect(dialog(page).locator("[aria-invalid=true]")).to_have_count(3)
    await page.screenshot("light/prices-refused", whole=False)
    await dialog(page).get_by_label("Adapter class of price 1").fill("*")
    await button(page, "Remove discount 1").click()
    await dialog(page).get_by_label("Input of price 1", exact=True).fill("0.1")
    await button(page, "Set prices").click()
    await expect(dialog(page)).to_contain_text("The price of cached input must not be higher than the price of input")
    await dialog(page).get_by_label("Cached input of price 1").fill("")
    await button(page, "Add a price").click()
    await dialog(page).get_by_label("Model of price 2").fill(f"{BASE}:pirate")
    await dialog(page).get_by_label("Input of price 2", exact=True).fill("0.000000001")
    await dialog(page).get_by_label("Output of price 2").fill("1,5")
    await button(page, "Add a discount").click()
    await dialog(page).get_by_label("Percent of discount 1").fill("12.5")
    tomorrow = datetime.datetime.now() + datetime.timedelta(days=2)
    await dialog(page).get_by_label("In force from").fill(f"{tomorrow:%Y-%m-%dT%H:%M}")
    await button(page, "Set prices").click()
    await expect(dialog(page)).to_have_count(0)
    second = page.page.get_by_role("table", name="Prices of version 2")
    await expect(second).to_contain_text("$0.00000000100")
    await expect(second).to_contain_text("$1.50")
    await expect(page.page.get_by_role("table", name="Discounts of version 2")).to_contain_text("12.5 %")
    await expect(page.page.locator(".lead")).to_contain_text("Version 1 is in force")

    viewer = await visit(VIEWER)
    await viewer.open(page.page.url.partition("/admin/")[2])
    await expect(viewer.page.get_by_role("table", name="Prices of version 2")).to_be_visible()
    for act in ("New prices", "Withdraw"):
        await expect(button(viewer, act)).to_have_count(0)

    await button(page, "Withdraw").click()
    await dialog(page).get_by_role("button", name="Withdraw").click()
    await expect(page.page.get_by_role("table", name="Prices of version 1")).to_be_visible()
    await expect(page.page.get_by_role("table", name="Versions of the price book").locator("tbody tr")).to_have_count(1)


async def test_a_tenant_gets_credit_an_adjustment_and_pays_in_advance(
    visit: Visit, browser_house: BrowserHouse
) -> None:
    page = await visit(BILLING)
    await page.open("usage/credits")
    balances = page.page.get_by_role("table", name="Balances")
    await expect(balances.locator("tbody tr")).to_have_count(5)
    await balances.get_by_role("link", name="hooli").click()
    await expect(page.page.locator(".lead")).to_contain_text("hooli pays by invoice")

    await button(page, "Grant credit").click()
    await dialog(page).get_by_label("Amount in USD").fill("0")
    await button(page, "Grant").click()
    await expect(dialog(page)).to_contain_text("Expected an amount above zero")
    await dialog(page).get_by_label("Amount in USD").fill("25.5")
    await dialog(page).get_by_label("Reason").fill("Paid in advance")
    await button(page, "Grant").click()
    await expect(page.page.get_by_role("table", name="Credits")).to_contain_text("$25.50")

    await button(page, "Adjust").click()
    page.expect("400 POST .*/adjustments")
    await dialog(page).get_by_label("Amount in USD").fill("1.5")
    await dialog(page).get_by_label("Reason").fill("Outage")
    await dialog(page).get_by_label("Corrects a request").fill("req_none")
    await button(page, "Refund").click()
    await expect(dialog(page)).to_contain_text("the project has no billed request with this id")
    await dialog(page).get_by_label("Corrects a request").fill("")
    await button(page, "Refund").click()
    await expect(page.page.get_by_role("table", name="Adjustments")).to_contain_text("-$1.50")

    await button(page, "Make it prepaid").click()
    await dialog(page).get_by_role("button", name="Make it prepaid").click()
    await expect(page.page.locator(".lead")).to_contain_text("pays in advance")
    await button(page, "Let it pay by invoice").click()
    await dialog(page).get_by_role("button", name="Pay by invoice").click()
    await expect(page.page.locator(".lead")).to_contain_text("pays by invoice")

    await button(page, "Set").click()
    await dialog(page).get_by_label("Customer id").fill("cus_hooli1")
    await button(page, "Save").click()
    await expect(page.page.locator(".facts")).to_contain_text("cus_hooli1")
    await button(page, "Remove the Stripe customer").click()
    await dialog(page).get_by_role("button", name="Remove").click()
    await expect(page.page.locator(".facts")).not_to_contain_text("cus_hooli1")

    viewer = await visit(VIEWER)
    await viewer.open(f"usage/credits?project={browser_house.projects['hooli']}")
    await expect(viewer.page.get_by_role("table", name="Credits")).to_be_visible()
    for act in ("Grant credit", "Adjust", "Make it prepaid", "Set"):
        await expect(button(viewer, act)).to_have_count(0)


async def test_a_month_is_closed_then_invoiced_and_each_line_leads_to_requests(visit: Visit) -> None:
    old = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=DAYS_OF_OLD_USAGE)
    viewer = await visit(VIEWER)
    await viewer.open(f"usage/periods/{old:%Y-%m}")
    await expect(viewer.page.get_by_role("table", name="Invoices of")).to_contain_text("acme")
    for act in ("Close the period", "Issue invoices"):
        await expect(button(viewer, act)).to_have_count(0)

    page = await visit(BILLING)
    await page.open("usage/periods")
    await page.page.get_by_role("link", name=f"{old:%B %Y}").click()
    await expect(page.page.locator(".lead")).to_contain_text("open")
    await button(page, "Close the period").click()
    await expect(dialog(page)).to_contain_text("become final for every tenant")
    go = dialog(page).get_by_role("button", name="Close the period")
    await expect(go).to_be_disabled()
    await dialog(page).get_by_role("textbox").fill(f"{old:%Y-%m}")
    await go.click()
    await expect(page.page.locator(".lead")).to_contain_text("closed")
    await button(page, "Issue invoices").click()
    await dialog(page).get_by_role("button", name="Issue invoices").click()
    await expect(page.page.locator(".lead")).to_contain_text("invoiced")
    await page.page.get_by_role("link", name="acme").click()
    await expect(page.page.locator(".lead")).to_contain_text("issued")
    href = await page.page.get_by_role("link", name="Page to print").get_attribute("href")
    printed = await page.page.request.get(f"{page.url}{href}")
    assert printed.headers["content-type"].startswith("text/html")
    assert "acme" in await printed.text()
    await page.page.get_by_role("link", name=f"{BASE}:retired").first.click()
    await expect(page.page.get_by_role("table", name="Requests").locator("tbody tr")).to_have_count(20)


async def _fail_a_run(dsn: str) -> None:
    """Record a failed run of a delivery, which is due again tomorrow."""
    conn = await asyncpg.connect(dsn)
    try:
        await conn.execute(
            "INSERT INTO delivery_runs (delivery_id, period, attempts, due_at, last_error)"
            " SELECT id, '2026-01-01', 3, now() + interval '1 day', 'the disk is full.' FROM deliveries"
        )
    finally:
        await conn.close()


async def test_an_export_is_downloaded_and_delivered(visit: Visit, browser_house: BrowserHouse, tmp_path: Path) -> None:
    page = await visit(BILLING)
    await page.open("usage/exports?kind=costs")
    page.expect("404 GET /v1/organization/exports")
    await page.page.get_by_label("Period").fill("2001-01")
    await button(page, "Download").click()
    await expect(page.page.locator(".export-form")).to_contain_text("There is no 2001-01")
    today = datetime.datetime.now(datetime.UTC)
    await page.page.get_by_label("Period").fill(f"{today:%Y-%m}")
    async with page.page.expect_download() as download:
        await button(page, "Download").click()
    file = await download.value
    assert file.suggested_filename == f"costs-{today:%Y-%m}.csv.zip"
    await file.save_as(tmp_path / "export.zip")
    names = zipfile.ZipFile(io.BytesIO((tmp_path / "export.zip").read_bytes())).namelist()
    assert any(name.endswith("manifest.json") for name in names)
    await expect(page.page.locator(".export-progress")).to_contain_text("KiB")

    await button(page, "New delivery").click()
    await dialog(page).get_by_label("From").fill("2026-02-31")
    await dialog(page).get_by_label("What").select_option("invoice")
    await dialog(page).get_by_label("Folder").fill("../etc")
    await button(page, "Set up").click()
    await expect(dialog(page).locator(".field-error")).to_have_text(
        [re.compile(text) for text in ("a name", "whole month", "a month such as", "Names of letters")]
    )
    await dialog(page).get_by_label("Destination").select_option("s3")
    await dialog(page).get_by_label("Bucket").fill("My Bucket")
    await dialog(page).get_by_label("Endpoint").fill("minio:9000")
    await button(page, "Set up").click()
    await expect(dialog(page).locator(".field-error")).to_have_text(
        [
            re.compile(text)
            for text in ("a name", "whole month", "a month such as", "bucket's name", "https://", "id of", "secret")
        ]
    )
    await dialog(page).get_by_label("Name").fill("finance")
    await dialog(page).get_by_label("What").select_option("costs")
    await dialog(page).get_by_label("From").fill(f"{today - datetime.timedelta(days=2):%Y-%m-%d}")
    await dialog(page).get_by_label("Destination").select_option("folder")
    await dialog(page).get_by_label("Folder").fill("finance")
    await button(page, "Set up").click()
    table = page.page.get_by_role("table", name="Deliveries")
    await expect(table).to_contain_text("costs, CSV")
    await _fail_a_run(browser_house.dsn)
    await button(page, "finance").click()
    assert "delivery=" in page.page.url, "a link shows the same"
    await expect(page.page.get_by_role("table", name="Runs of finance")).to_contain_text("failing")
    await expect(dialog(page).get_by_role("note")).to_contain_text("the disk is full")
    assert await page.violations() == []
    await page.page.keyboard.press("Escape")

    viewer = await visit(VIEWER)
    await viewer.open("usage/exports")
    await expect(viewer.page.get_by_role("table", name="Deliveries")).to_be_visible()
    for act in ("New delivery", "More about finance"):
        await expect(button(viewer, act)).to_have_count(0)

    await button(page, "More about finance").click()
    await page.page.get_by_role("menuitem", name="Change").click()
    await dialog(page).get_by_label("Format").select_option("focus")
    await button(page, "Save").click()
    await expect(table).to_contain_text("FOCUS")
    await button(page, "More about finance").click()
    await page.page.get_by_role("menuitem", name="Remove").click()
    await dialog(page).get_by_role("textbox").fill("finance")
    await dialog(page).get_by_role("button", name="Remove").click()
    await expect(page.page.get_by_role("heading", name="Nothing is delivered yet")).to_be_visible()


async def test_a_lost_journal_is_written_off_with_a_reason(visit: Visit, browser_house: BrowserHouse) -> None:
    conn = await asyncpg.connect(browser_house.dsn)
    try:
        await conn.execute(
            "INSERT INTO journals (id, open_requests, heard_at) VALUES ('journal_gone', 3, now() - interval '1 day')"
        )
    finally:
        await conn.close()
    viewer = await visit(VIEWER)
    await viewer.open("system/reconciliation")
    await expect(viewer.page.get_by_role("table", name="Lost journals")).to_contain_text("journal_gone")
    await expect(button(viewer, "Write off")).to_have_count(0)

    page = await visit(OWNER)
    await page.open("system/reconciliation")
    await expect(page.page.locator(".lead")).to_contain_text("3 requests may stay unbilled")
    await expect(page.page.get_by_role("table", name="Engines and the ledger")).to_contain_text(BASE)
    await button(page, "Write off").click()
    go = dialog(page).get_by_role("button", name="Write off")
    await go.click()
    await expect(dialog(page).locator(".field-error")).to_contain_text("Say why")
    await dialog(page).get_by_label("Reason").fill("Its disk was lost")
    await go.click()
    await expect(page.page.get_by_role("heading", name="No journal is lost")).to_be_visible()
