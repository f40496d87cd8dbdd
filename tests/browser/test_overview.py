"""The overview says what the API says; its charts zoom, tell their numbers on hover, and are also shown as tables."""

from __future__ import annotations

import re
import time

import pytest
from playwright.async_api import Page, expect

from tests.browser.conftest import Visit
from tests.browser.house import BILLING, VIEWER, BrowserHouse

HOUR_S = 3600


def traffic(house: BrowserHouse, **query: object) -> int:
    """Return the number of requests of the last 24 hours by the traffic API.

    query: further query parameters.
    """
    end = (int(time.time()) // HOUR_S + 1) * HOUR_S
    with house.operator() as operator:
        params = {"start_time": end - 24 * HOUR_S, "end_time": end, "bucket_width": "1h", "limit": 24, **query}
        buckets = operator.get("/traffic", params=params).raise_for_status().json()["data"]
    return sum(result["num_requests"] for bucket in buckets for result in bucket["results"])


async def exact(page: Page, title: str) -> int:
    """Return the exact number that a rounded figure shows on hover."""
    number = page.locator(".stat", has_text=title).locator(".num")
    return int((await number.get_attribute("title") or "").replace(",", ""))


async def test_the_overviews_numbers_are_those_of_the_api(visit: Visit, browser_house: BrowserHouse) -> None:
    page = await visit()
    page.loads = True  # loaded anew for the test's clock, since an hour may just have ended
    await page.open("")
    assert await exact(page.page, "Requests") == traffic(browser_house) > 1000
    acme = browser_house.projects["acme"]
    await page.turn_to(f"?project={acme}")
    await expect(page.page.get_by_role("heading", level=1)).to_have_text("acme")
    await expect(page.page.locator(".stat", has_text="Requests").locator(".num")).to_have_attribute(
        "title", f"{traffic(browser_house, **{'project_ids[]': acme}):,}"
    )
    rows = page.page.get_by_role("heading", name="Adapters").locator("xpath=..").locator(".bar-row")
    await expect(rows.filter(has_text="support-bot")).to_have_count(1)
    await expect(rows.filter(has_text="sql-writer")).to_have_count(0)


@pytest.mark.parametrize(("email", "place"), [(BILLING, "/admin/usage/prices"), (VIEWER, "/admin/usage")])
async def test_a_cost_without_prices_says_so_and_leads_to_them(
    visit: Visit, browser_house: BrowserHouse, email: str, place: str
) -> None:
    page = await visit(email)
    await page.open("")
    cost = page.page.locator(".stat", has_text="Cost")
    await expect(cost).to_have_attribute("href", "/admin/usage")
    await expect(cost).not_to_contain_text("No prices yet")
    with browser_house.operator() as operator:
        first = operator.get("/prices", params={"limit": 100}).json()["last_id"]
    await page.page.route(
        "**/v1/organization/prices?*", lambda route: route.continue_(url=f"{route.request.url}&after={first}")
    )
    await page.open("")
    await expect(cost).to_contain_text("No prices yet")
    await expect(cost).to_have_attribute("href", place)
    assert await page.violations() == []


async def test_a_charts_last_label_has_room(visit: Visit) -> None:
    """The last label stands below the right edge of the plot, half of it beyond; the chart leaves room for it."""
    page = await visit()
    await page.open("?range=7d")
    drawn = await page.page.locator(".plot .u-over").first.bounding_box()
    canvas = await page.page.locator(".plot canvas").first.bounding_box()
    card = await page.page.locator(".chart").first.bounding_box()
    assert drawn is not None and canvas is not None and card is not None
    room = canvas["x"] + canvas["width"] - drawn["x"] - drawn["width"]
    widest = await page.page.evaluate(
        """family => { const pen = document.createElement("canvas").getContext("2d"); pen.font = `11px ${family}`;
            return Math.max(...["30 Sept", "28 Mar", "00:00"].map(text => pen.measureText(text).width)); }""",
        await page.page.locator(".plot").first.evaluate("node => getComputedStyle(node).fontFamily"),
    )
    assert room >= widest / 2
    assert canvas["x"] + canvas["width"] <= card["x"] + card["width"]


async def test_dragging_over_a_chart_zooms_and_going_back_undoes_it(visit: Visit) -> None:
    page = await visit()
    await page.open("")
    plot = page.page.locator(".plot .u-over").first
    box = await plot.bounding_box()
    assert box is not None
    await page.page.mouse.move(box["x"] + box["width"] / 4, box["y"] + 40)
    tip = page.page.locator(".chart-tip")
    await expect(tip).to_contain_text("Completed")
    await page.screenshot("light/overview-hover")
    await page.page.mouse.down()
    await page.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 40, steps=5)
    await page.page.mouse.up()
    await page.page.wait_for_url(re.compile(r"from=\d+&to=\d+"))
    shown = re.search(r"from=(\d+)&to=(\d+)", page.page.url)
    assert shown is not None
    assert 5 * HOUR_S <= int(shown[2]) - int(shown[1]) <= 7 * HOUR_S
    await expect(page.page.get_by_role("button", name=re.compile("Time range: .* – "))).to_be_visible()
    await page.page.go_back()
    await expect(page.page.get_by_role("button", name="Time range: Last 24 hours")).to_be_visible()


async def test_a_chart_is_a_table_as_well(visit: Visit, browser_house: BrowserHouse) -> None:
    page = await visit()
    page.loads = True
    await page.open("")
    chart = page.page.locator(".chart", has_text="Requests").first
    await chart.get_by_role("button", name="Show as table").click()
    table = chart.get_by_role("table", name="Requests")
    assert await table.locator("tbody tr").count() == 24
    totals = await table.locator("tfoot .num").evaluate_all("numbers => numbers.map(number => number.title)")
    assert sum(int(text.replace(",", "")) for text in totals) == traffic(browser_house)
    assert await page.violations() == []
    await page.screenshot("light/overview-table")


@pytest.mark.parametrize("order", ["tokens", "errors"])
async def test_what_is_most_active_is_ordered_by_the_url(visit: Visit, order: str) -> None:
    page = await visit()
    await page.open(f"?top={order}")
    chosen = page.page.get_by_role("radio", name=order.capitalize())
    await expect(chosen).to_have_attribute("aria-checked", "true")
    first = page.page.locator(".bars").first.locator(".bar-row").first
    await expect(first).to_contain_text("acme")
    await expect(first).to_have_attribute("href", re.compile(r"^/admin/tenants/proj_\w+$"))


async def test_what_fails_leaves_no_numbers_of_another_tenant(visit: Visit, browser_house: BrowserHouse) -> None:
    page = await visit()
    await page.open("")
    stats = page.page.locator(".stat")
    await expect(stats.first).to_be_visible()
    failing = "**/v1/organization/traffic**"
    await page.page.route(failing, lambda route: route.fulfill(status=503, json={"error": {"message": "Not now."}}))
    page.expect("503 GET /v1/organization/traffic")
    await page.turn_to(f"?project={browser_house.projects['globex']}")
    await expect(page.page.get_by_role("heading", level=1)).to_have_text("globex")
    await expect(page.page.get_by_role("alert")).to_contain_text("Not now.")
    await expect(stats).to_have_count(0)
    await page.page.unroute(failing)
    await page.page.get_by_role("button", name="Try again").click()
    await expect(stats.first).to_be_visible()
    await expect(page.page.get_by_role("alert")).to_have_count(0)


async def test_long_ranges_begin_where_what_is_ranked_can_begin(visit: Visit) -> None:
    """Long ranges begin at a whole hour or day, from which the API can rank, so that chart and ranking cover the same
    time."""
    page = await visit()
    await page.open("")
    at = 1_790_000_000 + 1234
    ranges = await page.page.evaluate(
        """async (at) => {
            const { rangeOf } = await import("/admin/lib/format/time.js");
            return ["range=1h", "range=6h", "range=24h", "range=7d", "range=30d", "from=1789000123&to=1789500456"]
                .map((query) => rangeOf(new URLSearchParams(query), at));
        }""",
        at,
    )
    hour, six, day, week, month, chosen = ranges
    assert [each["start"] % border for each, border in ((six, HOUR_S), (week, 86_400), (chosen, 86_400))] == [0, 0, 0]
    assert [each["end"] - each["start"] for each in (hour, day, month)] == [HOUR_S, 24 * HOUR_S, 30 * 86_400]
    assert all(at < each["end"] <= at + 86_400 for each in (hour, six, day, week, month))
    assert 5 * HOUR_S < at - six["start"] <= 6 * HOUR_S
    assert 6 * 86_400 < at - week["start"] <= 7 * 86_400
    assert chosen["start"] <= 1_789_000_123 and chosen["end"] >= 1_789_500_456
    assert chosen["end"] % 86_400 == 0
