"""Usage explored: split into series, drawn, filtered, and each number leading to its requests."""

from __future__ import annotations

import re

from playwright.async_api import expect

from tests.browser.conftest import Visit
from tests.browser.house import MEMBER, VIEWER, BrowserHouse, write_copies
from tests.gateway.live import BASE


async def test_usage_is_split_into_series_and_each_number_leads_to_its_requests(
    visit: Visit, browser_house: BrowserHouse
) -> None:
    page = await visit(VIEWER)
    await page.open("usage")
    table = page.page.get_by_role("table", name="Usage by tenant")
    await expect(table.locator("tbody tr").nth(4)).to_contain_text("hooli")
    await expect(table.locator("tfoot")).to_contain_text("Total")
    legend = await page.page.locator(".legend li").all_inner_texts()
    assert legend[:5] == ["acme", "globex", "initech", "umbrella", "hooli"]
    await page.page.get_by_role("radio", name="Tokens").click()
    await expect(page.page.get_by_role("heading", name="Tokens by tenant")).to_be_visible()
    await page.page.get_by_role("radio", name="Model").click()
    models = page.page.get_by_role("table", name="Usage by model")
    await expect(models.locator("tbody tr")).to_have_count(7)
    assert "show=tokens" in page.page.url and "by=model" in page.page.url, "a link shows the same"

    await models.get_by_role("button", name=f"{BASE}:pirate").click()
    narrowed = page.page.get_by_role("table", name="Usage by tenant")
    await expect(narrowed.locator("tbody tr")).to_have_count(1)
    await expect(page.page.locator(".mark")).to_contain_text(f"{BASE}:pirate")
    failed = narrowed.locator("tbody tr td:nth-child(3) a")
    number = int(await failed.inner_text())
    await failed.click()
    await page.settled()
    requests = page.page.get_by_role("table", name="Requests")
    await expect(requests.locator("tbody tr")).to_have_count(number)
    assert {await each.inner_text() for each in await requests.locator("tbody td:nth-child(2) .badge").all()} == {
        "error"
    }


async def test_a_member_explores_its_own_usage_and_sees_its_own_bills(
    visit: Visit, browser_house: BrowserHouse
) -> None:
    page = await visit(MEMBER)
    await page.open("usage")
    await expect(page.page.get_by_role("table", name="Usage by model").locator("tbody tr")).to_have_count(3)
    assert await page.page.locator(".tabs a").all_inner_texts() == ["Explore", "Invoices", "Credits", "Exports"]
    await page.page.get_by_role("link", name="Invoices").click()
    await page.page.get_by_role("table", name="Invoices").locator("tbody a").first.click()
    await expect(page.page.get_by_role("heading", name="acme")).to_be_visible()
    await expect(page.page.get_by_role("table", name="Lines of the invoice")).to_contain_text(f"{BASE}:pirate")
    await page.turn_to("usage/exports")
    await expect(page.page.get_by_role("button", name="Download")).to_be_visible()
    await expect(page.page.get_by_role("heading", name="Deliveries")).to_have_count(0)
    await page.turn_to("usage/credits")
    await expect(page.page.locator(".lead")).to_contain_text("acme pays by invoice")
    for act in ("Grant credit", "Adjust", "Make it prepaid"):
        await expect(page.page.get_by_role("button", name=act)).to_have_count(0)
    await page.turn_to("usage/prices")
    await expect(page.page.get_by_role("heading", name="Not for your role")).to_be_visible()


async def test_copies_for_shadow_arms_are_shown_apart_from_other_requests(
    visit: Visit, browser_house: BrowserHouse
) -> None:
    initech = browser_house.projects["initech"]
    page = await visit(VIEWER)
    await page.open(f"usage?project={initech}")
    tiers = page.page.get_by_role("table", name="Usage by service tier")
    await expect(tiers).to_have_count(0)
    await write_copies(browser_house.dsn, initech, 7)
    await page.open(f"usage?project={initech}")
    await expect(tiers.locator("tbody tr")).to_contain_text(["default", "shadow copies"])
    copies = tiers.locator("tbody tr").filter(has_text="shadow")
    await expect(copies.locator("td").nth(1)).to_have_text("7")
    await expect(copies.locator("td").last).to_contain_text("$")
    await expect(page.page.get_by_text("nobody got their answers, and each is billed")).to_be_visible()
    await page.screenshot("light/usage-tiers")
    assert await page.violations() == []
    await page.turn_to(f"requests?project={initech}&model={BASE}")
    requests = page.page.get_by_role("table", name="Requests")
    await requests.locator("tbody tr").filter(has_text="shadow").first.click()
    notice = page.page.get_by_role("note").filter(has_text="A copy for a shadow arm")
    await expect(notice.get_by_role("link")).to_have_attribute("href", re.compile("/admin/requests/req_[0-9a-f]{32}$"))
    await expect(page.page.get_by_text("shadow", exact=True)).to_be_visible()
