"""Signing in and out, with and without an authenticator, and what strangers try."""

from __future__ import annotations

import base64
import re
import time
from urllib.parse import parse_qs, urlsplit

import httpx
import numpy as np
import pytest
import zxingcpp
from playwright.async_api import Route, expect

from gateway.domain.tenancy.recovery import NUM_CODES
from gateway.domain.tenancy.totp import STEP_S, code_at
from tests.browser.conftest import Visit, sign_in
from tests.browser.house import OWNER, PASSWORD, VIEWER, BrowserHouse
from tests.browser.watched import WatchedPage
from tests.patience import PATIENCE_S

WRONG = "401 POST /admin/v1/login"
ENDED = "401 (GET|POST) /(v1/organization|admin/v1)/"
MODULE = re.compile(r"M(\d+) (\d+)h1v1h-1z")


async def type_login(page: WatchedPage, email: str, password: str = PASSWORD) -> None:
    await page.page.get_by_label("E-mail").fill(email)
    await page.page.get_by_label("Password").fill(password)
    await page.page.keyboard.press("Enter")


async def test_a_deep_link_is_where_signing_in_leads(visit: Visit) -> None:
    page = await visit(None)
    await page.open("system/status?range=7d")
    await page.page.wait_for_url("**/admin/signin?next=*")
    await type_login(page, OWNER)
    await page.page.wait_for_url("**/admin/system/status?range=7d")
    await expect(page.page.get_by_role("heading", name="Installation")).to_be_visible()


@pytest.mark.parametrize(
    "place",
    [
        "https://evil.example/",
        "//evil.example/admin/",
        "javascript:alert(1)",
        "/v1/models",
        "http://[",
        "/admin/signin",
    ],
)
async def test_signing_in_leads_nowhere_else(visit: Visit, browser_house: BrowserHouse, place: str) -> None:
    page = await visit()
    await page.page.goto(f"{browser_house.url}/admin/signin?next={place}")
    await page.settled()
    assert page.page.url == f"{browser_house.url}/admin/"


async def test_a_wrong_password_is_refused_and_leaves_what_was_typed(visit: Visit) -> None:
    page = await visit(None)
    page.expect(WRONG)
    await page.open("signin")
    await type_login(page, VIEWER, "not the password")
    await expect(page.page.get_by_role("alert")).to_contain_text("Incorrect e-mail address, password or code.")
    await expect(page.page.get_by_label("E-mail")).to_have_value(VIEWER)
    assert await page.violations() == []


async def test_text_of_strangers_stays_text(visit: Visit) -> None:
    page = await visit(None)
    page.expect("40[01] POST /admin/v1/login")
    await page.open("signin")
    await type_login(
        page, '<img src=x onerror="window.violations.push(1)">@x', "<script>window.violations.push(2)</script>"
    )
    await expect(page.page.get_by_role("alert").or_(page.page.locator(".field-error")).first).to_be_visible()
    assert await page.page.locator("img[src=x]").count() == 0


async def test_signing_out_ends_the_login(visit: Visit, browser_house: BrowserHouse) -> None:
    page = await visit(None)
    page.expect(ENDED)  # requests that were sent just before
    await page.open("signin")
    await type_login(page, OWNER)
    await page.page.wait_for_url("**/admin/")
    device, cookie = sorted(await page.page.context.cookies(), key=lambda each: each.get("name", ""))
    assert (device["name"], cookie["name"]) == ("lorikeet_device", "lorikeet_login")
    assert all(each["httpOnly"] and each["sameSite"] == "Strict" for each in (device, cookie))
    assert (
        await page.page.evaluate("document.cookie + JSON.stringify(localStorage) + JSON.stringify(sessionStorage)")
        == "{}{}"
    )
    await page.page.get_by_role("button", name="Account of").click()
    await page.page.get_by_role("menuitem", name="Sign out").click()
    await page.page.wait_for_url("**/admin/signin*")
    async with httpx.AsyncClient(cookies={cookie["name"]: cookie["value"]}, timeout=PATIENCE_S) as client:
        assert (await client.get(f"{browser_house.url}/admin/v1/session")).status_code == 401


async def test_a_login_that_was_ended_elsewhere_leads_to_signing_in(visit: Visit, browser_house: BrowserHouse) -> None:
    page = await visit(None)
    page.expect(ENDED)
    cookie = await sign_in(browser_house.url, VIEWER)
    await page.page.context.add_cookies([cookie])  # type: ignore[list-item]
    await page.open("account")
    async with httpx.AsyncClient(
        cookies={cookie["name"]: cookie["value"]}, base_url=browser_house.url, timeout=PATIENCE_S
    ) as client:
        token = (await client.get("/admin/v1/session")).json()["csrf_token"]
        await client.post("/admin/v1/logout", json={}, headers={"x-csrf-token": token})
    await page.page.get_by_role("link", name="System", exact=True).first.click()
    await page.page.wait_for_url("**/admin/signin?next=*")


async def test_signing_out_in_one_tab_shows_in_the_others_at_once(visit: Visit, browser_house: BrowserHouse) -> None:
    page = await visit(None)
    page.expect(ENDED)
    await page.page.context.add_cookies([await sign_in(browser_house.url, VIEWER)])  # type: ignore[list-item]
    await page.open("account")
    other = WatchedPage(await page.page.context.new_page(), browser_house.url)
    await other.open("account")
    await other.page.get_by_role("button", name="Account of").click()
    await other.page.get_by_role("menuitem", name="Sign out").click()
    await page.page.wait_for_url("**/admin/signin?next=*")
    await expect(page.page.get_by_label("Password")).to_be_visible()


async def test_an_authenticator_is_set_up_by_its_qr_code_and_asked_for_at_the_next_login(
    visit: Visit, browser_house: BrowserHouse
) -> None:
    email = "tess@lorikeet.test"
    with browser_house.operator() as operator:
        operator.post("/users", json={"email": email, "role": "viewer", "password": PASSWORD}).raise_for_status()
    page = await visit(email)
    page.expect("401 POST /admin/v1/(totp|login)")
    await page.open("account")
    await page.page.get_by_role("button", name="Set up").click()
    dialog = page.page.get_by_role("dialog")
    await dialog.get_by_label("Your password").fill("a wrong one, to begin with")
    await dialog.get_by_role("button", name="Continue").click()
    await expect(dialog.get_by_role("alert")).to_contain_text("Incorrect")
    await dialog.get_by_label("Your password").fill(PASSWORD)
    await dialog.get_by_role("button", name="Continue").click()

    drawn = dialog.get_by_role("img", name="QR code for your authenticator")
    uri = read_qr(await drawn.get_attribute("viewBox") or "", await drawn.locator("path").get_attribute("d") or "")
    assert uri.startswith("otpauth://totp/Lorikeet:tess%40lorikeet.test?")
    secret = base64.b32decode(parse_qs(urlsplit(uri).query)["secret"][0])
    assert await page.violations() == []
    await page.screenshot("light/account-authenticator")
    used = int(time.time()) // STEP_S
    await dialog.get_by_role("textbox", name="Code").fill(code_at(secret, used))
    await dialog.get_by_role("button", name="Confirm").click()
    codes = (await dialog.get_by_label("Recovery codes", exact=True).last.inner_text()).split()
    assert len(set(codes)) == NUM_CODES
    assert await page.violations() == []
    await dialog.get_by_role("button", name="I have kept them").click()
    await expect(page.page.get_by_text("Codes are asked for when you sign in.")).to_be_visible()

    second = await visit(None)
    second.expect(WRONG)
    await second.open("signin")
    await type_login(second, email)
    await expect(second.page.get_by_role("heading", name="One more step")).to_be_visible()
    await second.screenshot("light/signin-code")
    await second.page.get_by_label("Code").fill(code_at(secret, used))  # a used one
    await second.page.keyboard.press("Enter")
    await expect(second.page.get_by_role("alert")).to_be_visible()
    await second.page.get_by_label("Code").fill(codes[0].upper())
    await second.page.keyboard.press("Enter")
    await second.page.wait_for_url("**/admin/")


def read_qr(view_box: str, path: str) -> str:
    """Return the text that a reader of QR codes finds in a drawing."""
    size, scale = int(view_box.split()[-1]), 4
    image = np.full((size, size), 255, dtype=np.uint8)
    for x, y in MODULE.findall(path):
        image[int(y), int(x)] = 0
    (found,) = zxingcpp.read_barcodes(np.kron(image, np.ones((scale, scale), dtype=np.uint8)))
    return str(found.text)


async def test_who_has_to_set_up_an_authenticator_sees_nothing_but_the_account_page(visit: Visit) -> None:
    page = await visit(None)

    async def require_authenticator(route: Route) -> None:
        reply = await route.fetch()
        if not reply.ok:
            return await route.fulfill(response=reply)
        held = {"must_set_up_totp": True, "needs_second_factor": True, "permissions": [], "projects": []}
        session = {**await reply.json(), **held}
        return await route.fulfill(response=reply, json=session)

    await page.page.route("**/admin/v1/session", require_authenticator)
    await page.open("system/status")
    await page.page.wait_for_url("**/admin/signin?next=*")
    await type_login(page, OWNER)
    await page.page.wait_for_url("**/admin/account")
    await expect(page.page.get_by_text("People with your role need a second factor here. Set up")).to_be_visible()
    await expect(page.page.get_by_text("a password alone is not enough")).to_be_visible()
    await expect(page.page.get_by_role("button", name="Set up")).to_be_visible()
    await expect(page.page.get_by_role("link", name="Tenants")).to_have_count(0)
    await page.page.unroute("**/admin/v1/session")
    await page.open("tenants")
    await expect(page.page.get_by_role("heading", name="Tenants", exact=True)).to_be_visible()
