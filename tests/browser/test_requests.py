"""Requests: they come in by themselves, stand still under the pointer, are narrowed by the URL, and are explained."""

from __future__ import annotations

import re

import httpx
from playwright.async_api import expect

from tests.browser.conftest import Visit
from tests.browser.house import MEMBER, OWNER, BrowserHouse, request_id
from tests.gateway.live import BASE
from tests.patience import PATIENCE_S

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


async def test_requests_come_in_by_themselves_and_stand_still_under_the_pointer(
    visit: Visit, browser_house: BrowserHouse
) -> None:
    page = await visit(OWNER)
    hooli = browser_house.projects["hooli"]
    with browser_house.operator() as operator:
        operator.post(f"/projects/{hooli}", json={"log_content_days": 1}).raise_for_status()
    await page.open(f"requests?project={hooli}&range=1h")
    rows = page.page.get_by_role("table", name="Requests").locator("tbody tr")
    await expect(page.page.locator(".page-actions .badge")).to_have_text("Live")
    first = await rows.first.locator("a").get_attribute("href")

    await page.page.get_by_role("table", name="Requests").hover()
    await expect(page.page.locator(".page-actions .badge")).to_have_text("Held")
    id = await _ask(browser_house, "hooli")
    assert await rows.first.locator("a").get_attribute("href") == first
    await page.page.mouse.move(5, 5)
    await expect(page.page.locator(".page-actions .badge")).to_have_text("Live")
    row = page.page.locator(f'a[href="/admin/requests/{id}"]')
    await expect(row).to_be_visible()

    await row.click()
    await expect(page.page.locator(".timeline-legend")).to_contain_text("First token to end")
    await expect(page.page.get_by_role("table", name="Attempts").locator("tbody tr")).to_have_count(1)
    await expect(page.page.get_by_role("table", name="Price lines")).to_contain_text("Output")
    await expect(page.page.locator(".facts")).to_contain_text("hooli production")
    await expect(page.page.locator(".facts")).to_contain_text(TRACE[:8])

    await page.page.get_by_role("button", name="Show what it said").click()
    said = page.page.locator(".turn")
    await expect(said).to_have_text([re.compile(r"user.*I am \[email\]"), re.compile("answer, .*")])
    await page.screenshot("light/request-content")
    page.expect(f"404 GET /v1/organization/projects/{browser_house.projects['acme']}/requests/req_.*/content")
    await page.turn_to(f"requests/{request_id(browser_house.projects['acme'], f'{BASE}:pirate', 2)}")
    await page.page.get_by_role("button", name="Show what it said").click()
    await expect(page.page.get_by_text("Nothing is logged of this request")).to_be_visible()


async def test_the_stored_response_of_a_request_is_read_with_its_conversation(
    visit: Visit, browser_house: BrowserHouse
) -> None:
    page = await visit(OWNER)
    hooli = browser_house.projects["hooli"]
    with browser_house.operator() as operator:
        operator.post(f"/projects/{hooli}", json={"store_days": 1}).raise_for_status()
    async with httpx.AsyncClient(base_url=browser_house.url, timeout=PATIENCE_S) as client:
        client.headers["authorization"] = f"Bearer {browser_house.keys['hooli']}"
        made = await client.post("/v1/conversations", json={})
        while made.status_code == 400:  # until the gateway knows of the change
            made = await client.post("/v1/conversations", json={})
        conversation = made.json()["id"]
        for said in ("first words", "second words"):
            body = {"model": BASE, "input": said, "max_output_tokens": 4, "conversation": conversation}
            reply = await client.post("/v1/responses", json=body)
            assert reply.status_code == 200, reply.text
    await page.open(f"requests?project={hooli}&range=1h")
    await page.page.locator(f'a[href="/admin/requests/{reply.headers["x-request-id"]}"]').click()
    await page.page.get_by_role("button", name="Show the stored response").click()
    await expect(page.page.locator(".turn")).to_have_text([re.compile("user.*second words"), re.compile("assistant.*")])
    await page.page.get_by_role("button", name="Show the whole conversation").click()
    await expect(page.page.get_by_text("first words").first).to_be_visible()
    await expect(page.page.locator(".turn")).to_have_count(6)


async def _ask(house: BrowserHouse, project: str) -> str:
    """Send a request and return the request's id once it has been answered."""
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        body = {"model": BASE, "messages": [{"role": "user", "content": "I am ann@example.com"}], "max_tokens": 4}
        headers = {"authorization": f"Bearer {house.keys[project]}", "traceparent": f"00-{TRACE}-{'b' * 16}-01"}
        reply = await client.post(f"{house.url}/v1/chat/completions", json=body, headers=headers)
    assert reply.status_code == 200, reply.text
    return reply.headers["x-request-id"]


async def test_what_failed_is_explained(visit: Visit, browser_house: BrowserHouse) -> None:
    page = await visit(OWNER)
    await page.open("requests?status=error")
    rows = page.page.get_by_role("table", name="Requests").locator("tbody tr")
    await expect(rows.first).to_contain_text("The engine failed")
    assert {await each.inner_text() for each in await rows.locator("td:nth-child(2) .badge").all()} == {"error"}
    await page.page.get_by_label("Result").select_option("refused")
    await expect(rows.first).to_contain_text("The engine refused it")
    assert {await each.inner_text() for each in await rows.locator("td:nth-child(2) .badge").all()} == {"refused"}
    await page.page.get_by_label("Result").select_option("cancelled")
    await expect(rows.first).to_contain_text("The client went away")
    assert page.page.url.endswith("status=cancelled")
    await rows.first.locator("a").click()
    await expect(page.page.get_by_role("note")).to_contain_text("What had been generated until then was billed")

    page.expect("404 GET /v1/organization/requests/req_none")
    await page.turn_to("requests/req_none")
    await expect(page.page.get_by_role("heading", name="No request has this id")).to_be_visible()
    await page.turn_to("requests?model=nobody")
    await page.page.get_by_role("button", name="Show all requests").click()
    await expect(rows.first).to_be_visible()


async def test_a_member_sees_requests_of_its_project_alone(visit: Visit, browser_house: BrowserHouse) -> None:
    page = await visit(MEMBER)
    await page.open("requests")
    table = page.page.get_by_role("table", name="Requests")
    await expect(table.locator("tbody tr").first).to_be_visible()
    assert "Tenant" not in await table.locator("thead").inner_text()
    page.expect("404 GET /v1/organization/requests/")
    await page.turn_to(f"requests/{request_id(browser_house.projects['globex'], f'{BASE}:poet', 2)}")
    await expect(page.page.get_by_role("heading", name="No request has this id")).to_be_visible()
