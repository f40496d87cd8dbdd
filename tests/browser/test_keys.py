"""API keys: made and shown once, changed, rotated, suspended, resumed, revoked; and service accounts."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import expect

from tests.browser.acts import choose, confirm, dialog, expect_message, row, secret_of
from tests.browser.conftest import Visit
from tests.browser.house import BILLING, MEMBER, VIEWER, BrowserHouse


@pytest_asyncio.fixture(loop_scope="session")
async def tenant(browser_house: BrowserHouse) -> AsyncIterator[str]:
    """Give the id of a project of this test's own."""
    with browser_house.operator() as operator:
        made = operator.post("/projects", json={"name": f"keys of {time.monotonic_ns()}"}).json()
        yield made["id"]
        operator.post(f"/projects/{made['id']}/archive", json={})


def status_with(house: BrowserHouse, key: str) -> int:
    return httpx.get(f"{house.url}/v1/models", headers={"authorization": f"Bearer {key}"}).status_code


async def test_a_key_lives_from_its_making_to_its_end(visit: Visit, browser_house: BrowserHouse, tenant: str) -> None:
    watched = await visit()
    page = watched.page
    await watched.open(f"tenants/{tenant}/keys")
    await expect(page.get_by_text("No key yet")).to_be_visible()
    await page.get_by_role("button", name="New key").first.click()
    form = dialog(page, "New API key")
    await form.get_by_label("Name").fill("checkout")
    await form.get_by_label("Read usage").check()
    await form.get_by_label("Expires").select_option("30")
    await form.get_by_label("All, those to come too").uncheck()
    await form.get_by_label("Networks").fill("not a network")
    watched.expect(f"400 POST /v1/organization/projects/{tenant}/api_keys")
    await form.get_by_role("button", name="Create key").click()
    await expect(form.locator(".field-error")).to_be_visible()
    await form.get_by_label("Networks").fill("127.0.0.0/8\n::1")
    await form.get_by_role("button", name="Create key").click()
    made = dialog(page, "Your new key")
    first = await secret_of(made, "API key")
    await expect(made.get_by_role("group", name="curl line")).to_be_visible()
    assert status_with(browser_house, first) == 200
    await page.keyboard.press("Escape")  # a secret shown once is closed by its button alone
    await made.get_by_role("button", name="I have stored it").click()
    await expect(made).to_have_count(0)
    assert first not in await page.content()

    with browser_house.operator() as operator:
        (key,) = operator.get(f"/projects/{tenant}/api_keys").json()["data"]
    assert (key["name"], key["scopes"], key["models"]) == ("checkout", ["inference", "usage"], ["tiny"])
    assert key["ip_allowlist"] == ["127.0.0.0/8", "::1/128"]
    assert 29 * 86_400 < key["expires_at"] - time.time() < 31 * 86_400

    await row(page, "checkout").get_by_role("link", name="checkout").click()
    await expect(dialog(page, "checkout")).to_contain_text("127.0.0.0/8")
    assert f"key={key['id']}" in page.url
    await dialog(page, "checkout").get_by_role("button", name="Change").click()
    form = dialog(page, "Change checkout")
    await form.get_by_label("Name").fill("checkout 2")
    await form.get_by_label("All, those to come too").check()
    await form.get_by_role("button", name="Save").click()
    await expect_message(page, "The key is changed")

    await choose(page, "checkout 2", "Rotate")
    await dialog(page, "Rotate checkout 2").get_by_role("button", name="Rotate").click()
    second = await secret_of(dialog(page, "Your new key"), "API key")
    await dialog(page, "Your new key").get_by_role("button", name="I have stored it").click()
    assert [status_with(browser_house, each) for each in (first, second)] == [200, 200]
    await expect(row(page, "checkout 2")).to_contain_text("two secrets")

    await choose(page, "checkout 2", "Suspend")
    await confirm(page, "Suspend checkout 2?", "Suspend key")
    await expect_message(page, "is suspended")
    await expect(row(page, "checkout 2")).to_contain_text("suspended")
    await choose(page, "checkout 2", "Resume")
    await confirm(page, "Resume checkout 2?", "Resume key")
    await expect_message(page, "works again")
    await choose(page, "checkout 2", "Revoke")
    await confirm(page, "Revoke checkout 2?", "Revoke key", typed="checkout 2")
    await expect_message(page, "is revoked")
    await expect(page.get_by_text("No key is in use")).to_be_visible()
    await page.get_by_role("button", name="Show ended ones").click()
    await expect(row(page, "checkout 2")).to_contain_text("revoked")


async def test_showing_a_new_key_does_not_use_it(visit: Visit, browser_house: BrowserHouse, tenant: str) -> None:
    """The example shown with a new key names the base model, which the page knows without a request by the key."""
    watched = await visit()
    page = watched.page
    used: list[str] = []
    page.on("request", lambda request: "authorization" in request.headers and used.append(request.url))
    await watched.open(f"tenants/{tenant}/keys")
    await page.get_by_role("button", name="New key").first.click()
    form = dialog(page, "New API key")
    await form.get_by_label("Name").fill("spare")
    await form.get_by_role("button", name="Create key").click()
    await expect(dialog(page, "Your new key").get_by_role("group", name="curl line")).to_contain_text('"model":"tiny"')
    await page.get_by_role("button", name="I have stored it").click()
    await expect(row(page, "spare")).to_contain_text("not used yet")
    await row(page, "spare").get_by_role("link", name="spare").click()
    await expect(dialog(page, "spare")).to_contain_text("not used yet")
    await watched.settled()
    assert used == []


async def test_a_service_account_comes_with_a_key_and_takes_it_along(
    visit: Visit, browser_house: BrowserHouse, tenant: str
) -> None:
    watched = await visit()
    page = watched.page
    await watched.open(f"tenants/{tenant}/keys")
    await page.get_by_role("button", name="New service account").click()
    form = dialog(page, "New service account")
    await form.get_by_label("Name").fill("nightly")
    await form.get_by_role("button", name="Create").click()
    secret = await secret_of(dialog(page, "Your new key"), "API key")
    await page.get_by_role("button", name="I have stored it").click()
    assert status_with(browser_house, secret) == 200
    await expect(page.get_by_text("No key yet")).to_have_count(0)  # which has a button of the same name
    await page.get_by_role("button", name="New key").click()
    form = dialog(page, "New API key")
    await form.get_by_label("Owner").select_option("Service account nightly")
    await form.get_by_label("Name").fill("second")
    await form.get_by_role("button", name="Create key").click()
    await page.get_by_role("button", name="I have stored it").click()
    await expect(row(page, "second")).to_contain_text("nightly")
    await page.get_by_role("button", name="Delete nightly").click()
    await expect(dialog(page, "Delete nightly?")).to_contain_text("2 keys of it are revoked")
    await confirm(page, "Delete nightly?", "Delete service account", typed="nightly")
    await expect_message(page, "its keys are revoked")
    await expect(page.get_by_text("No key is in use")).to_be_visible()


@pytest.mark.parametrize(("email", "may"), [(MEMBER, True), (VIEWER, False), (BILLING, False)])
async def test_only_people_who_may_make_keys_are_offered_it(
    visit: Visit, browser_house: BrowserHouse, email: str, may: bool
) -> None:
    watched = await visit(email)
    page = watched.page
    await watched.open(f"tenants/{browser_house.projects['acme']}/keys")
    await expect(row(page, "acme production")).to_be_visible()
    for name in ("New key", "New service account", "Actions on acme production"):
        await expect(page.get_by_role("button", name=name)).to_have_count(int(may))
    await page.keyboard.press("n")
    await expect(dialog(page, "New API key")).to_have_count(int(may))
