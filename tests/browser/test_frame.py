"""The frame: places by key and by click, the time range and the project in the URL, themes, roles."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from tests.browser.conftest import Visit
from tests.browser.door import door_to
from tests.browser.house import ADMIN, BILLING, MEMBER, VIEWER, BrowserHouse
from tests.browser.watched import WatchedPage
from tests.patience import least

LOOKED_AT = """state => {
    Object.defineProperty(document, "visibilityState", { value: state, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
}"""
"""A script that sets the page's visibility state, since no window of this browser can be behind another one."""


async def rail(page: WatchedPage) -> list[str]:
    await page.page.locator(".rail-links").wait_for(state="attached")
    return await page.page.locator(".rail-links .rail-link").all_inner_texts()


@pytest.mark.parametrize(
    ("email", "places"),
    [
        (
            ADMIN,
            ["Overview", "Tenants", "Adapters", "Usage", "Models", "Experiments", "Playground", "Requests", "System"],
        ),
        (VIEWER, ["Overview", "Tenants", "Adapters", "Usage", "Models", "Experiments", "Requests", "System"]),
        (BILLING, ["Overview", "Tenants", "Usage", "Requests", "System"]),
        (
            MEMBER,
            ["Overview", "Adapters", "Keys", "Usage", "Models", "Experiments", "Limits", "Playground", "Requests"],
        ),
    ],
)
async def test_the_rail_shows_what_a_role_may_see(visit: Visit, email: str, places: list[str]) -> None:
    page = await visit(email)
    await page.open("account")
    assert await rail(page) == places


async def test_what_a_role_may_not_see_says_so(visit: Visit) -> None:
    page = await visit(BILLING)
    await page.open("system/audit")
    await expect(page.page.get_by_role("heading", name="Your role does not show this")).to_be_visible()
    page = await visit(MEMBER)
    await page.open("system")
    await expect(page.page.get_by_role("heading", name="Your role does not show this")).to_be_visible()


async def test_keys_lead_from_place_to_place(visit: Visit, browser_house: BrowserHouse) -> None:
    page = await visit()
    await page.open("account")
    await page.press_keys("g s")
    await page.page.wait_for_url("**/admin/system")
    await expect(page.page.get_by_role("link", name="System", exact=True)).to_have_attribute("aria-current", "page")
    await page.press_keys("?")
    dialog = page.page.get_by_role("dialog", name="Keyboard shortcuts")
    await expect(dialog).to_contain_text("Go to System")
    await page.screenshot("light/shortcuts")
    await page.page.keyboard.press("Escape")
    await expect(dialog).to_have_count(0)
    await page.press_keys("/")
    box = page.page.get_by_role("combobox", name="Search")
    await expect(box).to_be_focused()
    await box.press_sequentially("overv")
    await page.page.keyboard.press("Enter")
    await page.page.wait_for_url(f"{browser_house.url}/admin/")
    await page.press_keys("/")
    await box.press_sequentially("acme production")
    await expect(page.page.get_by_role("option", name="acme production")).to_contain_text("key")
    await page.page.keyboard.press("Enter")
    await expect(page.page.get_by_role("dialog", name="acme production")).to_be_visible()


async def test_the_time_range_is_in_the_url_and_stays(visit: Visit) -> None:
    page = await visit()
    await page.open("")
    await page.page.get_by_role("button", name="Time range: Last 24 hours").click()
    await page.page.get_by_role("menuitemradio", name="Last 7 days").click()
    await page.page.wait_for_url("**/admin/?range=7d")
    await page.press_keys("g s")
    await page.page.wait_for_url("**/admin/system?range=7d")
    await page.page.reload()
    await expect(page.page.get_by_role("button", name="Time range: Last 7 days")).to_be_visible()
    await page.page.go_back()
    await page.page.wait_for_url("**/admin/?range=7d")
    await page.page.go_back()
    await expect(page.page.get_by_role("button", name="Time range: Last 24 hours")).to_be_visible()


async def test_a_project_is_looked_at_until_another_is(visit: Visit, browser_house: BrowserHouse) -> None:
    page = await visit()
    await page.open("")
    await page.page.get_by_role("button", name="Project: All tenants").click()
    await page.page.get_by_role("menuitemradio", name="globex").click()
    await page.page.wait_for_url(f"**/admin/?project={browser_house.projects['globex']}")
    await expect(page.page.get_by_role("heading", level=1)).to_have_text("globex")
    await page.press_keys("g s")
    await expect(page.page.get_by_role("button", name="Project: globex")).to_be_visible()


async def test_a_theme_is_kept_and_can_be_the_systems(visit: Visit) -> None:
    page = await visit(mode="light")
    await page.open("account")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = await page.page.evaluate(ground)

    async def choose(name: str) -> None:
        await page.page.get_by_role("button", name="Account of").click()
        await page.page.get_by_role("menuitemradio", name=name).click()

    body = page.page.locator("body")
    await choose("Dark")
    await expect(body).not_to_have_css("background-color", light)
    dark = await page.page.evaluate(ground)
    await page.page.reload()
    await page.settled()
    await expect(body).to_have_css("background-color", dark)
    await choose("System theme")
    await expect(body).to_have_css("background-color", light)


async def test_live_updates_pause_where_everybody_sees_it(visit: Visit) -> None:
    page = await visit()
    await page.open("account")
    await page.press_keys("l")
    await expect(page.page.get_by_role("button", name="Paused")).to_have_attribute("aria-pressed", "true")
    await page.page.get_by_role("button", name="Paused").click()
    await expect(page.page.get_by_role("button", name="Paused")).to_have_count(0)


async def test_keyboards_see_where_they_are_and_skip_the_rail(visit: Visit) -> None:
    page = await visit()
    await page.open("account")
    await page.page.keyboard.press("Tab")
    await expect(page.page.get_by_role("link", name="Skip to the content")).to_be_focused()
    await page.page.keyboard.press("Enter")
    await expect(page.page.locator("#main")).to_be_focused()
    await page.page.keyboard.press("Tab")
    outline = await page.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


async def test_on_a_phone_places_are_in_a_dock(visit: Visit) -> None:
    page = await visit(mode="phone")
    await page.open("account")
    dock = page.page.locator(".dock")
    await dock.get_by_role("button", name="More places").tap()
    await page.page.get_by_role("menuitem", name="System").tap()
    await page.page.wait_for_url("**/admin/system")
    assert await page.page.locator(".rail").is_visible() is False
    more = dock.get_by_role("button", name="More places")
    await expect(more).to_have_attribute("aria-current", "true")
    await more.tap()
    await expect(page.page.get_by_role("menuitem", name="System")).to_have_attribute("aria-current", "page")
    await expect(dock.locator("[role=menuitem][aria-current]")).to_have_count(1)
    await dock.get_by_role("link", name="Usage").tap()
    await page.page.wait_for_url("**/admin/usage")
    await expect(dock.locator("[aria-current]")).to_have_text(["Usage"])


async def test_the_first_paint_is_there_within_a_second(visit: Visit) -> None:
    page = await visit()
    page.loads = True

    async def measure() -> float:
        await page.open("")
        paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        return float(await page.page.evaluate(paint)) / 1e3

    assert await least(measure, 1) < 1


async def test_a_page_that_nobody_looks_at_holds_no_connection(visit: Visit) -> None:
    page = await visit()
    streams: list[str] = []
    page.page.on("request", lambda request: streams.append(request.url) if request.url.endswith("/live") else None)
    await page.open("account")
    await expect(page.page.get_by_role("button", name="Live", exact=True)).to_be_visible()
    assert len(streams) == 1
    async with page.page.expect_event("requestfailed", lambda request: request.url.endswith("/live")):
        await page.page.evaluate(LOOKED_AT, "hidden")
    async with page.page.expect_request("**/live"):
        await page.page.evaluate(LOOKED_AT, "visible")
    await expect(page.page.get_by_role("button", name="Live", exact=True)).to_be_visible()
    assert len(streams) == 2


async def test_the_page_says_when_the_gateway_goes_and_comes_back(visit: Visit, browser_house: BrowserHouse) -> None:
    watched = await visit()
    watched.expect("net::ERR_|502 GET /")
    page = watched.page
    async with door_to(browser_house.gateway.port) as door:
        watched.url = door.url
        await watched.open("account")
        live = page.get_by_role("button", name="Live", exact=True)
        lost = page.get_by_text("Not connected: the gateway does not answer.")
        await expect(live).to_be_visible()
        await expect(lost).to_have_count(0)
        await door.set("shut")
        await expect(lost).to_be_visible()
        await expect(live).to_have_count(0)
        await door.set("open")
        await expect(lost).to_have_count(0)
        await expect(live).to_be_visible()

        await door.set("empty")
        await expect(page.get_by_role("button", name="Not live")).to_be_visible()
        await expect(lost).to_be_visible()
        await door.set("open")
        await page.evaluate(LOOKED_AT, "hidden")
        await page.evaluate(LOOKED_AT, "visible")
        await expect(live).to_be_visible()
        await expect(lost).to_have_count(0)
        await page.goto("about:blank")  # or it would miss the door


async def test_addresses_that_mean_nothing_still_show_a_page(visit: Visit) -> None:
    page = await visit()
    page.expect("4.. GET /v1/organization/")
    for path in ("?project=%25", "tenants/%E0%A4", "nothing/%E0%A4%A", "?from=1&to=999999999999999"):
        await page.open(path)
        await expect(page.page.locator("h1")).to_have_count(1)
        await expect(page.page.get_by_role("button", name="Search")).to_be_visible()


async def test_a_range_is_at_most_a_year(visit: Visit) -> None:
    page = await visit()
    await page.open("account")
    await page.page.get_by_role("button", name="Time range:").click()
    await page.page.get_by_role("menuitemradio", name="From … to …").click()
    dialog = page.page.get_by_role("dialog", name="Time range")
    await dialog.get_by_label("From").fill("2024-01-01T00:00")
    await expect(dialog).to_contain_text("It has to be at most 366 days after the start.")
    await expect(dialog.get_by_role("button", name="Show")).to_be_disabled()


async def test_going_back_closes_the_dialog_in_front_and_leaves_the_page(
    visit: Visit, browser_house: BrowserHouse
) -> None:
    watched = await visit()
    page = watched.page
    acme = browser_house.projects["acme"]
    await watched.open(f"tenants/{acme}")
    await page.get_by_role("link", name="Members").first.click()
    await page.get_by_role("button", name="Add member").click()
    await expect(page.get_by_role("dialog", name="Add a member to acme")).to_be_visible()
    await page.evaluate("history.back()")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    assert page.url.endswith(f"/admin/tenants/{acme}/members")
    await page.get_by_role("table", name="Members").click()
    await page.evaluate("history.back()")
    await page.wait_for_url(f"**/admin/tenants/{acme}")


async def test_on_a_phone_the_tab_that_is_shown_is_in_sight(visit: Visit, browser_house: BrowserHouse) -> None:
    watched = await visit(mode="phone")
    await watched.open(f"tenants/{browser_house.projects['acme']}/settings")
    await expect(watched.page.locator(".tabs [aria-current=page]")).to_be_in_viewport(ratio=0.9)
