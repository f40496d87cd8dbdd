"""Limits: set, changed and removed under live gauges; and why one refused a request."""

from __future__ import annotations

import httpx
import pytest
from playwright.async_api import Locator, Page, expect

from tests.browser.acts import choose, confirm, dialog, expect_message, row
from tests.browser.conftest import Visit
from tests.browser.house import BILLING, MEMBER, VIEWER, BrowserHouse
from tests.gateway.live import BASE
from tests.patience import PATIENCE_S


def gauge(page: Page, title: str) -> Locator:
    return page.locator("article.limit").filter(has=page.get_by_role("heading", name=title, exact=True))


async def test_limits_are_set_changed_and_removed(visit: Visit, browser_house: BrowserHouse) -> None:
    umbrella = browser_house.projects["umbrella"]
    watched = await visit()
    page = watched.page
    await watched.open(f"tenants/{umbrella}/limits")
    await expect(page.get_by_text("Nothing is limited")).to_be_visible()
    await page.get_by_role("button", name="New limit").click()
    form = dialog(page, "New limit")
    watched.expect(f"400 POST /v1/organization/projects/{umbrella}/limits")
    await form.get_by_role("button", name="Set limit").click()
    await expect(form.locator(".field-error")).to_be_visible()
    await form.get_by_label("At most").fill("3000000")
    await form.get_by_role("button", name="Set limit").click()
    await expect_message(page, "The limit holds now")
    await expect(gauge(page, "Tokens per day")).to_contain_text("of 3M")
    await expect(page.locator(".lead")).to_contain_text("tokens per day")

    await choose(page, "Tokens per day, the whole tenant", "Change")
    form = dialog(page, "Change tokens per day")
    await form.get_by_label("At most").fill("4000000")
    await form.get_by_role("button", name="Save").click()
    await expect_message(page, "The limit is changed")
    await expect(gauge(page, "Tokens per day")).to_contain_text("of 4M")

    await page.get_by_role("button", name="Set spend limit").click()
    await dialog(page, "New limit").get_by_label("At most, in USD").fill("12.5")
    await dialog(page, "New limit").get_by_role("button", name="Set limit").click()
    await expect_message(page, "The limit holds now")
    await expect(gauge(page, "Spend per month")).to_contain_text("of $12.5")
    await page.get_by_role("button", name="Set alert").click()
    await dialog(page, "New limit").get_by_label("At most, in USD").fill("10")
    await dialog(page, "New limit").get_by_role("button", name="Set limit").click()
    await expect_message(page, "The limit holds now")
    await expect(gauge(page, "Alert: spend per month")).to_contain_text("refuses nothing", ignore_case=True)
    with browser_house.operator() as operator:
        assert operator.get(f"/projects/{umbrella}/spend_limit").json()["threshold_amount"] == 1250
        (alert,) = operator.get(f"/projects/{umbrella}/spend_alerts").json()["data"]
        assert alert["threshold_amount"] == 1000

    await page.get_by_role("button", name=f"Change the rate limits of {BASE}", exact=True).click()
    form = dialog(page, f"Rate limits of {BASE}")
    await form.get_by_label("Requests per minute").fill("60")
    await form.get_by_role("button", name="Save").click()
    await expect_message(page, "are changed")
    await expect(row(page, BASE).first).to_contain_text("60")

    await choose(page, "Tokens per day, the whole tenant", "Remove")
    await confirm(page, "Remove “Tokens per day”?", "Remove limit")
    await expect_message(page, "The limit is removed")
    await expect(gauge(page, "Tokens per day")).to_have_count(0)
    assert await watched.violations() == []


async def test_a_refusal_is_explained(visit: Visit, browser_house: BrowserHouse) -> None:
    hooli = browser_house.projects["hooli"]
    with browser_house.operator() as operator:
        limit = {"unit": "requests", "max": 0, "window": "day"}
        limit_id = operator.post(f"/projects/{hooli}/limits", json=limit).json()["id"]
    body = {"model": BASE, "messages": [{"role": "user", "content": "Hello"}]}
    headers = {"authorization": f"Bearer {browser_house.keys['hooli']}"}
    async with httpx.AsyncClient(base_url=browser_house.url, headers=headers, timeout=PATIENCE_S) as client:
        refused = await client.post("/v1/chat/completions", json=body)
    assert refused.status_code == 429, refused.text
    with browser_house.operator() as operator:
        assert operator.delete(f"/projects/{hooli}/limits/{limit_id}").status_code == 200
    request_id = refused.headers["x-request-id"]

    watched = await visit()
    page = watched.page
    watched.expect("404 GET /v1/organization/refusals/req_")
    await watched.open(f"tenants/{hooli}/refusals")
    for _ in range(40):  # refusals are written in batches, a moment later
        said = await page.locator(".lead").inner_text()
        if "the last one" in said and await row(page, "Requests per day").count():
            break
        await page.wait_for_timeout(250)
        await watched.open(f"tenants/{hooli}/refusals")
    await expect(page.locator(".lead")).to_contain_text("refused, the last one")
    await row(page, "Requests per day").get_by_role("link").first.click()
    why = dialog(page, "Why was this refused?")
    await expect(why).to_contain_text("Requests per day")
    await expect(why.locator(".advice")).to_contain_text("limit of 0 requests")
    assert await watched.violations() == []
    await watched.screenshot("light/refusal")
    await page.keyboard.press("Escape")

    await watched.open("refusals")
    await expect(row(page, "hooli")).to_be_visible()
    await page.get_by_label("Request id").fill(request_id)
    await page.keyboard.press("Enter")
    await expect(why).to_contain_text(request_id[-6:])
    assert f"q={request_id}" in page.url
    await watched.open("refusals?q=req_nothing")
    await expect(why).to_contain_text("No refusal has this id")


async def test_a_member_bounds_their_keys_alone(visit: Visit, browser_house: BrowserHouse) -> None:
    acme = browser_house.projects["acme"]
    watched = await visit(MEMBER)
    page = watched.page
    await watched.open(f"tenants/{acme}/limits")
    await expect(gauge(page, "Tokens per day")).to_be_visible()
    for name in ("Set spend limit", "Set alert", "Change the rate limits", "Actions on Tokens per day"):
        await expect(page.get_by_role("button", name=name)).to_have_count(0)
    await page.get_by_role("button", name="New limit").click()
    form = dialog(page, "New limit")
    await expect(form.get_by_label("Of whom")).not_to_contain_text("The whole tenant")
    await form.get_by_label("Of whom").select_option("Key acme production")
    await form.get_by_label("At most").fill("777")
    await form.get_by_role("button", name="Set limit").click()
    await expect_message(page, "The limit holds now")
    await choose(page, "Tokens per day, key acme production", "Remove")
    await confirm(page, "Remove “Tokens per day”?", "Remove limit")
    await expect_message(page, "The limit is removed")


@pytest.mark.parametrize("email", [VIEWER, BILLING])
async def test_who_only_reads_limits_sees_no_way_to_change_them(
    visit: Visit, browser_house: BrowserHouse, email: str
) -> None:
    watched = await visit(email)
    page = watched.page
    await watched.open(f"tenants/{browser_house.projects['acme']}/limits?new=1")
    await expect(gauge(page, "Tokens per day")).to_be_visible()
    await expect(page.get_by_role("dialog")).to_have_count(0)
    for name in ("New limit", "Set spend limit", "Change the rate limits", "Actions on"):
        await expect(page.get_by_role("button", name=name)).to_have_count(0)


async def test_the_organization_has_limits_of_its_own(visit: Visit) -> None:
    watched = await visit()
    page = watched.page
    await watched.open("system/limits?new=1")
    form = dialog(page, "New limit")
    await form.get_by_label("Of", exact=True).select_option("concurrency")
    await form.get_by_label("At most").fill("900")
    await form.get_by_role("button", name="Set limit").click()
    await expect_message(page, "The limit holds now")
    await expect(gauge(page, "Requests at once")).to_contain_text("all tenants")
    await choose(page, "Requests at once, all tenants", "Remove")
    await confirm(page, "Remove “Requests at once”?", "Remove limit")
    await expect(page.get_by_text("The organization has no limit")).to_be_visible()

    watched = await visit(VIEWER)
    await watched.open("system/limits")
    await expect(watched.page.get_by_role("button", name="New limit")).to_have_count(0)


async def test_a_limit_is_what_was_typed_or_refused_at_its_field(visit: Visit, browser_house: BrowserHouse) -> None:
    with browser_house.operator() as operator:
        project_id = operator.post("/projects", json={"name": "exact"}).json()["id"]
        watched = await visit()
        page = watched.page
        await watched.open(f"tenants/{project_id}/limits?new=1")
        form = dialog(page, "New limit")
        complaint = form.locator(".field-error")
        await form.get_by_label("Of", exact=True).select_option("requests")
        await form.get_by_label("Alert at, in %").fill("80, 101, x")
        for wrong, sentence in (("", "Give a whole number"), ("1.5", "not rounded"), ("lots", "Give a whole number")):
            await form.get_by_label("At most").fill(wrong)
            await form.get_by_role("button", name="Set limit").click()
            await expect(complaint).to_have_count(2)
            await expect(complaint.first).to_contain_text(sentence)
        await expect(complaint.last).to_contain_text("Whole percentages from 1 to 100")
        await form.get_by_label("Alert at, in %").fill("80, 100")
        await form.get_by_label("Of", exact=True).select_option("cost_nanos")
        for wrong, sentence in (("0.0000000001", "The least is"), ("0", "The least is"), ("ten", "Give an amount")):
            await form.get_by_label("At most").fill(wrong)
            await form.get_by_role("button", name="Set limit").click()
            await expect(complaint).to_contain_text(sentence)
        await watched.screenshot("light/limit-refused", whole=False)
        assert operator.get(f"/projects/{project_id}/limits").json()["data"] == []
        await form.get_by_label("At most").fill("0.000000001")
        await form.get_by_role("button", name="Set limit").click()
        await expect_message(page, "The limit holds now")
        (limit,) = operator.get(f"/projects/{project_id}/limits").json()["data"]
        assert (limit["unit"], limit["max"]) == ("cost_nanos", 1)

        await page.get_by_role("button", name="Change the rate limits of").first.click()
        rates = page.get_by_role("dialog", name="Rate limits of")
        await rates.get_by_label("Requests per minute").fill("0.5")
        await rates.get_by_label("Requests per day").fill("many")
        await rates.get_by_role("button", name="Save").click()
        await expect(rates.locator(".field-error")).to_have_count(2)


async def test_a_limit_that_is_there_already_is_changed_and_not_replaced(
    visit: Visit, browser_house: BrowserHouse
) -> None:
    with browser_house.operator() as operator:
        project_id = operator.post("/projects", json={"name": "twice"}).json()["id"]
        limit = {"unit": "tokens", "max": 5000, "window": "day", "alert_percents": [55]}
        operator.post(f"/projects/{project_id}/limits", json=limit).raise_for_status()
        watched = await visit()
        page = watched.page
        await watched.open(f"tenants/{project_id}/limits?new=1")
        form = dialog(page, "New limit")
        await form.get_by_label("At most").fill("9000")
        await form.get_by_role("button", name="Set limit").click()
        await expect(form.get_by_role("note")).to_contain_text("There is one already")
        await watched.screenshot("light/limit-there-already", whole=False)
        (kept,) = operator.get(f"/projects/{project_id}/limits").json()["data"]
        assert (kept["max"], kept["alert_percents"]) == (5000, [55])
        await form.get_by_role("button", name="Change it").click()
        change = dialog(page, "Change tokens per day")
        await expect(change.get_by_label("At most")).to_have_value("5000")
        await expect(change.get_by_label("Alert at, in %")).to_have_value("55")
        await change.get_by_label("At most").fill("9000")
        await change.get_by_role("button", name="Save").click()
        await expect_message(page, "The limit is changed")
        (kept,) = operator.get(f"/projects/{project_id}/limits").json()["data"]
        assert (kept["max"], kept["alert_percents"]) == (9000, [55])
