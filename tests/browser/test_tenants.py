"""Tenants: found, made with a key that works at once, changed, suspended, ended; by people who may and who may not."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from playwright.async_api import Route, expect

from tests.browser.acts import confirm, dialog, expect_message, row, secret_of
from tests.browser.conftest import Mode, Visit
from tests.browser.house import BILLING, MEMBER, OWNER, VIEWER, BrowserHouse, write_unpriced


async def test_a_new_tenant_ends_with_a_line_that_works(visit: Visit, browser_house: BrowserHouse) -> None:
    watched = await visit()
    page = watched.page
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await watched.open("tenants")
    await page.keyboard.press("n")
    form = dialog(page, "New tenant")
    watched.expect("409 POST /v1/organization/projects")
    await form.get_by_label("Name").fill("acme")
    await form.get_by_role("button", name="Create tenant").click()
    await expect(form.locator(".field-error")).to_contain_text("There is already a")
    await form.get_by_label("Name").fill("zenith")
    await form.get_by_role("button", name="Create tenant").click()

    made = dialog(page, "zenith is ready")
    secret = await secret_of(made, "API key")
    line = made.get_by_role("group", name="curl line")
    await expect(line).to_contain_text("/v1/chat/completions")
    assert secret not in await line.inner_text()
    await line.get_by_role("button", name="Copy").click()
    copied: str = await page.evaluate("navigator.clipboard.readText()")
    process = await asyncio.create_subprocess_shell(
        copied, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    reply = json.loads((await process.communicate())[0])
    assert reply["choices"][0]["message"]["role"] == "assistant", reply

    assert await watched.violations() == []
    await watched.screenshot("light/tenant-created")
    await made.get_by_role("link", name="Open the tenant").click()
    await expect(page.get_by_role("heading", level=1, name="zenith")).to_be_visible()
    assert secret not in page.url


async def test_tenants_are_found_by_name_and_state(visit: Visit, browser_house: BrowserHouse) -> None:
    with browser_house.operator() as operator:
        asleep = operator.post("/projects", json={"name": "sleeper"}).json()["id"]
        operator.post(f"/projects/{asleep}/suspend")
    watched = await visit()
    page = watched.page
    await watched.open("tenants")
    await expect(page.locator(".lead")).to_contain_text("this month")
    cost = await row(page, "acme").locator("td").nth(4).inner_text()
    await page.get_by_role("searchbox", name="Filter Tenants").fill("glob")
    await expect(page.locator("tbody tr")).to_have_count(1)
    await page.get_by_role("searchbox", name="Filter Tenants").fill("")
    await page.get_by_role("radio", name="Suspended").click()
    await expect(page.locator("tbody tr")).to_have_count(1)
    await expect(row(page, "sleeper")).to_contain_text("suspended")
    await page.reload()
    await expect(page.locator("tbody tr")).to_have_count(1)
    await row(page, "sleeper").get_by_role("link", name="sleeper").click()
    await page.get_by_role("button", name="Resume").click()
    await expect_message(page, "sleeper is resumed")
    await expect(page.get_by_text("This tenant is suspended")).to_have_count(0)
    await watched.open(f"tenants/{browser_house.projects['acme']}")
    await expect(page.locator(".lead")).to_contain_text(f"{cost} so far this month")
    await expect(page.get_by_role("img", name="Requests")).to_be_visible()
    await page.get_by_role("link", name="acme production").click()
    await expect(dialog(page, "acme production")).to_be_visible()


@pytest.mark.parametrize("mode", ["light", "phone"])
async def test_the_tenant_that_is_looked_at_is_marked_in_sight(
    visit: Visit, browser_house: BrowserHouse, mode: Mode
) -> None:
    watched = await visit(mode=mode)
    page = watched.page
    await watched.open(f"tenants?project={browser_house.projects['hooli']}")
    marked = page.locator("tbody tr[aria-current]")
    await expect(marked).to_have_count(1)
    await expect(marked).to_contain_text("hooli")
    await expect(marked.get_by_role("link", name="hooli")).to_be_in_viewport()
    await page.get_by_role("button", name="Project: hooli").click()
    await page.get_by_role("menuitemradio", name="All tenants").click()
    await expect(marked).to_have_count(0)


async def test_the_limits_of_a_tenant_are_shown_in_words(visit: Visit, browser_house: BrowserHouse) -> None:
    """With five requests used, a limit of at most five shows as used up, of six as near the end, of a hundred as
    neither."""
    told = {
        "all of it": ([(5, True)], "1 limit used up"),
        "most of it": ([(6, True)], "1 limit at 83 %"),
        "both of it": ([(5, True), (6, False)], "1 limit used up, 1 at 83 %"),
        "most of two": ([(6, True), (6, False)], "2 limits at up to 83 %"),
        "twice of it": ([(5, True), (5, False)], "2 limits used up"),
        "little of it": ([(100, True)], "none near its end"),
    }
    with browser_house.operator() as operator:
        for name, (limits, _) in told.items():
            project_id = operator.post("/projects", json={"name": name}).json()["id"]
            for most, hard in limits:
                limit = {"unit": "requests", "window": "month", "max": most, "hard": hard}
                operator.post(f"/projects/{project_id}/limits", json=limit).raise_for_status()
            await write_unpriced(browser_house.dsn, project_id, 5)
    watched = await visit()
    await watched.open("tenants")
    for name, (_, words) in told.items():
        shown = row(watched.page, name).locator("[data-title=Limits]")
        await expect(shown).to_have_text(words)
        await expect(shown.get_by_role("link")).to_have_attribute("href", re.compile("^/admin/tenants/proj_.*/limits$"))
    both = row(watched.page, "both of it").locator("[data-title=Limits] a")
    await expect(both).to_have_attribute("title", re.compile("used up\n.* 83 % full"))
    await expect(watched.page.locator(".lead")).to_contain_text("near a limit or over it")


@pytest.mark.parametrize(("email", "leads"), [(OWNER, True), (VIEWER, False)])
async def test_a_chart_of_costs_says_why_it_is_empty(
    visit: Visit, browser_house: BrowserHouse, email: str, leads: bool
) -> None:
    """The chart tells requests that came before there were prices from requests whose price is zero."""

    async def always(route: Route) -> None:
        reply = await route.fetch()
        page = await reply.json()
        page["data"] = [version | {"effective_at": 0} for version in page["data"]]
        await route.fulfill(response=reply, json=page)

    with browser_house.operator() as operator:
        project_id = operator.post("/projects", json={"name": f"free for {email}"}).json()["id"]
    await write_unpriced(browser_house.dsn, project_id, 3, days_ago=0.2)
    watched = await visit(email)
    empty = watched.page.locator(".chart", has_text="Cost").locator(".chart-empty")
    for path in (f"tenants/{project_id}", f"usage?project={project_id}"):
        await watched.open(path)
        await expect(empty).to_contain_text("There were no prices when these requests ran.")
        await expect(empty.get_by_role("link", name="Open the price book")).to_have_count(int(leads))
        await watched.page.route("**/v1/organization/prices?*", always)
        await watched.open(path)
        await expect(empty).to_have_text("These requests cost nothing")
        await watched.page.unroute_all(behavior="wait")  # one may be answered just now


async def test_settings_are_kept_and_a_tenant_ends(visit: Visit, browser_house: BrowserHouse) -> None:
    with browser_house.operator() as operator:
        project_id = operator.post("/projects", json={"name": "brief"}).json()["id"]
        watched = await visit()
        page = watched.page
        await watched.open(f"tenants/{project_id}/settings")
        await page.get_by_label("Name").fill("briefer")
        await page.get_by_role("button", name="Rename").click()
        await expect_message(page, "briefer")
        await page.get_by_label("Store completions and responses").check()
        await page.get_by_label("Days until they are deleted").fill("400")
        watched.expect(f"400 POST /v1/organization/projects/{project_id}")
        await page.get_by_role("button", name="Save").first.click()
        await expect(page.locator(".field-error")).to_be_visible()
        await page.get_by_label("Days until they are deleted").fill("7")
        await page.get_by_label("Keep replies for retries").uncheck()
        await page.get_by_role("button", name="Save").first.click()
        await expect_message(page, "Saved")
        await expect(page.locator(".lead")).to_contain_text("for 7 days")
        now = operator.get(f"/projects/{project_id}").json()
        assert (now["name"], now["store_days"], now["keep_replies"]) == ("briefer", 7, False)
        await page.get_by_label("priority").check()
        await page.get_by_role("button", name="Save tiers").click()
        await expect_message(page, "Service tiers saved")
        assert operator.get(f"/projects/{project_id}").json()["service_tiers"] == ["default", "flex", "priority"]

        await page.get_by_role("button", name="Suspend").click()
        await confirm(page, "Suspend briefer?", "Suspend tenant")
        await expect_message(page, "suspended")
        await expect(page.get_by_text("This tenant is suspended")).to_be_visible()
        await page.locator(".act").get_by_role("button", name="Resume").click()
        await confirm(page, "Resume briefer?", "Resume tenant")
        await expect_message(page, "resumed")

        await page.get_by_role("button", name="Archive").click()
        asked = dialog(page, "Archive briefer?")
        await asked.get_by_label("Days until its content is purged").fill("3")
        await confirm(page, "Archive briefer?", "Archive tenant", typed="briefer")
        await expect(page.get_by_text("This tenant was archived")).to_be_visible()
        await expect(page.get_by_role("button", name="Rename")).to_have_count(0)
        now = operator.get(f"/projects/{project_id}").json()
        assert now["status"] == "archived"
        assert 2 * 86_400 < now["purge_after"] - now["archived_at"] <= 3 * 86_400


@pytest.mark.parametrize("email", [VIEWER, BILLING, MEMBER])
async def test_who_may_not_change_tenants_sees_no_way_to(visit: Visit, browser_house: BrowserHouse, email: str) -> None:
    acme = browser_house.projects["acme"]
    watched = await visit(email)
    page = watched.page
    await watched.open("tenants?new=1")
    await expect(row(page, "acme")).to_be_visible()
    assert await row(page, "globex").count() == (0 if email == MEMBER else 1)
    await expect(page.get_by_role("button", name="New tenant")).to_have_count(0)
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await watched.open(f"tenants/{acme}")
    await expect(page.get_by_role("link", name="Limits").first).to_be_visible()
    await expect(page.get_by_role("link", name="Settings")).to_have_count(1 if email == MEMBER else 0)
    await watched.open(f"tenants/{acme}/settings")
    own = page.get_by_role("heading", name="Content log")
    await expect(own if email == MEMBER else page.get_by_text("Nothing here can be changed by you.")).to_be_visible()
    await expect(page.get_by_role("button", name="Rename")).to_have_count(0)


async def test_a_member_finds_no_other_tenant(visit: Visit, browser_house: BrowserHouse) -> None:
    globex = browser_house.projects["globex"]
    watched = await visit(MEMBER)
    watched.expect(f"404 GET /v1/organization/(projects/{globex}|costs)")
    watched.expect("403 GET /v1/organization/costs")
    await watched.open(f"tenants/{globex}")
    await expect(watched.page.get_by_role("alert")).to_contain_text("No project has the id")
