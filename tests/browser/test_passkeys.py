"""Passkeys in a browser, of a device that Chromium stands in for: added, used to sign in, named and removed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from playwright.async_api import CDPSession, Route, expect

from tests.browser.acts import dialog, expect_message, row
from tests.browser.conftest import Visit
from tests.browser.house import PASSWORD, BrowserHouse
from tests.browser.test_signin import type_login
from tests.browser.watched import WatchedPage

PLATFORM = {
    "protocol": "ctap2",
    "transport": "internal",
    "hasResidentKey": True,
    "hasUserVerification": True,
    "isUserVerified": True,
    "automaticPresenceSimulation": True,
}
SIGN_IN = "Sign in with a passkey"


@asynccontextmanager
async def device_of(page: WatchedPage) -> AsyncIterator[tuple[CDPSession, dict[str, Any]]]:
    """Attach a virtual authenticator to the browser. Give the DevTools session, and arguments that name the device."""
    session = await page.page.context.new_cdp_session(page.page)
    await session.send("WebAuthn.enable")
    made = await session.send("WebAuthn.addVirtualAuthenticator", {"options": PLATFORM})
    yield session, {"authenticatorId": made["authenticatorId"]}
    await session.send("WebAuthn.disable")


def at_localhost(page: WatchedPage) -> WatchedPage:
    """Return the page, with URLs of the host name that passkeys belong to."""
    page.url = page.url.replace("127.0.0.1", "localhost")
    return page


async def test_a_passkey_lives_from_its_making_to_its_end(visit: Visit, browser_house: BrowserHouse) -> None:
    email = "pia@lorikeet.test"
    with browser_house.operator() as operator:
        operator.post("/users", json={"email": email, "role": "viewer", "password": PASSWORD}).raise_for_status()
    page = at_localhost(await visit(None))
    page.expect("401 POST /admin/v1/(passkeys|login/passkey)")
    shown = page.page
    async with device_of(page) as (session, device):
        await page.open("account")
        await type_login(page, email)
        await shown.get_by_role("button", name="Add passkey").click()
        adding = dialog(shown, "Add a passkey")
        await adding.get_by_label("Name").fill("laptop")
        await adding.get_by_label("Your password").fill("a wrong one, to begin with")
        await adding.get_by_role("button", name="Continue").click()
        await expect(adding.get_by_role("alert")).to_contain_text("Incorrect")
        assert (await session.send("WebAuthn.getCredentials", device))["credentials"] == []
        await adding.get_by_label("Your password").fill(PASSWORD)
        assert await page.violations() == []
        await adding.get_by_role("button", name="Continue").click()
        await expect_message(shown, "The passkey is added")
        await expect(row(shown, "laptop")).to_contain_text("never")
        assert await page.violations() == []

        await shown.get_by_role("button", name="Add passkey").click()
        await adding.get_by_label("Name").fill("the same laptop")
        await adding.get_by_label("Your password").fill(PASSWORD)
        await adding.get_by_role("button", name="Continue").click()
        await expect(adding.get_by_role("alert")).to_contain_text("holds a passkey of yours already")
        await adding.get_by_role("button", name="Cancel").click()

        await shown.get_by_role("button", name="Account of").click()
        await shown.get_by_role("menuitem", name="Sign out").click()
        await session.send("WebAuthn.setUserVerified", {**device, "isUserVerified": False})
        await shown.get_by_role("button", name=SIGN_IN).click()
        await expect(shown.get_by_role("alert")).to_contain_text("No passkey was given")
        assert await page.violations() == []
        await session.send("WebAuthn.setUserVerified", {**device, "isUserVerified": True})
        await shown.get_by_role("button", name=SIGN_IN).click()
        await shown.wait_for_url("**/admin/**")
        await expect(shown.get_by_role("button", name="Account of")).to_be_visible()

        await page.open("account")
        await expect(row(shown, "laptop")).not_to_contain_text("never")
        await shown.get_by_role("button", name="Rename laptop").click()
        renaming = dialog(shown, "Rename the passkey")
        await renaming.get_by_label("Name").fill("old laptop")
        await renaming.get_by_role("button", name="Rename").click()
        await shown.get_by_role("button", name="Remove old laptop").click()
        removing = dialog(shown, "Remove the passkey")
        await removing.get_by_label("Your password").fill(PASSWORD)
        await removing.get_by_role("button", name="Remove").click()
        await expect_message(shown, "The passkey is removed")
        await expect(shown.get_by_text("You have none.")).to_be_visible()

        await shown.get_by_role("button", name="Account of").click()
        await shown.get_by_role("menuitem", name="Sign out").click()
        await shown.get_by_role("button", name=SIGN_IN).click()
        await expect(shown.get_by_role("alert")).to_contain_text("not known here")


async def test_a_passkey_of_another_host_is_shown_as_such(visit: Visit) -> None:
    page = await visit()
    passkey = {"id": "passkey_1", "name": "old phone", "created_at": 1, "last_used_at": None}
    passkey |= {"host": "former.example.com", "is_usable": False, "object": "admin.passkey"}

    async def with_another(route: Route) -> None:
        reply = await route.fetch()
        await route.fulfill(response=reply, json={**await reply.json(), "data": [passkey]})

    await page.page.route("**/admin/v1/passkeys", with_another)
    await page.open("account")
    await expect(row(page.page, "old phone")).to_contain_text("of former.example.com")
    assert await page.violations() == []


async def test_where_browsers_have_no_passkeys_no_button_asks_for_one(visit: Visit) -> None:
    page = await visit(None)
    await page.open("signin")
    await expect(page.page.get_by_label("Password")).to_be_visible()
    assert "127.0.0.1" in page.page.url
    await expect(page.page.get_by_role("button", name=SIGN_IN)).to_have_count(0)
