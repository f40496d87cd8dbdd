"""The organization's people: made, given a role, reset, signed out, removed; operator keys, webhooks, the audit log."""

from __future__ import annotations

import httpx
from playwright.async_api import expect

from tests.browser.acts import choose, confirm, dialog, expect_message, row, secret_of
from tests.browser.conftest import Visit, sign_in
from tests.browser.house import ADMIN, OWNER, PASSWORD, VIEWER, BrowserHouse
from tests.patience import PATIENCE_S

EMAIL = "nora@lorikeet.test"


async def test_an_account_lives_from_its_making_to_its_end(visit: Visit, browser_house: BrowserHouse) -> None:
    watched = await visit()
    page = watched.page
    await watched.open("system/users")
    await page.keyboard.press("n")
    form = dialog(page, "New person")
    watched.expect("409 POST /v1/organization/users")
    await form.get_by_label("E-mail").fill(VIEWER)
    await form.get_by_role("button", name="Create account").click()
    await expect(form.locator(".field-error")).to_contain_text("There is already a")
    await form.get_by_label("E-mail").fill(EMAIL)
    await form.get_by_label("Role").select_option("billing")
    await form.get_by_role("button", name="Create account").click()
    made = dialog(page, "The account is ready")
    first = await secret_of(made, "Password")
    await made.get_by_role("button", name="I have passed it on").click()
    cookie = await sign_in(browser_house.url, EMAIL, first)

    def status_of_login() -> int:
        cookies = {cookie["name"]: cookie["value"]}
        return httpx.get(f"{browser_house.url}/admin/v1/session", cookies=cookies).status_code

    assert status_of_login() == 200
    await choose(page, EMAIL, "Name and role")
    form = dialog(page, f"Change {EMAIL}")
    await form.get_by_label("Name").fill("Nora")
    await form.get_by_label("Role").select_option("viewer")
    await form.get_by_role("button", name="Save").click()
    await expect_message(page, "is viewer now")
    await row(page, EMAIL).get_by_role("link", name="Nora").click()
    await expect(dialog(page, "Nora").get_by_role("region", name="Sessions")).to_contain_text("127.0.0.1")
    await page.keyboard.press("Escape")

    await choose(page, EMAIL, "Sign out everywhere")
    await confirm(page, f"Sign {EMAIL} out?", "Sign out")
    await expect_message(page, "1 session ended")
    assert status_of_login() == 401
    await choose(page, EMAIL, "Reset sign-in")
    await dialog(page, f"Reset the sign-in of {EMAIL}?").get_by_role("button", name="Reset").click()
    second = await secret_of(dialog(page, "The sign-in is reset"), "Password")
    await page.get_by_role("button", name="I have passed it on").click()
    await sign_in(browser_house.url, EMAIL, second)
    await choose(page, EMAIL, "Remove")
    await confirm(page, f"Remove {EMAIL}?", "Remove person", typed=EMAIL)
    await expect_message(page, "is removed")
    await expect(row(page, EMAIL)).to_have_count(0)
    watched.expect("409 DELETE /v1/organization/users/")
    await choose(page, OWNER, "Remove")
    asked = dialog(page, f"Remove {OWNER}?")
    await asked.get_by_label("Type").fill(OWNER)
    await asked.get_by_role("button", name="Remove person").click()
    await expect(asked.get_by_role("alert")).to_contain_text("last owner")


async def test_removing_a_person_names_the_keys_that_end(visit: Visit, browser_house: BrowserHouse) -> None:
    """The dialog names the person's keys of every tenant, with the tenant, and admin keys, but no ended key."""
    email = "oscar@lorikeet.test"
    with browser_house.operator() as operator:
        operator.post("/users", json={"email": email, "role": "admin", "password": PASSWORD}).raise_for_status()
    watched = await visit()
    page = watched.page
    await watched.open("system/users")
    await choose(page, email, "Remove")
    await expect(dialog(page, f"Remove {email}?")).to_contain_text("They own no API key: no program is refused.")
    await page.keyboard.press("Escape")

    cookie = await sign_in(browser_house.url, email)
    acme, globex = (f"/v1/organization/projects/{browser_house.projects[name]}/api_keys" for name in ("acme", "globex"))
    async with httpx.AsyncClient(
        base_url=browser_house.url, cookies={cookie["name"]: cookie["value"]}, timeout=PATIENCE_S
    ) as oscar:
        oscar.headers["x-csrf-token"] = (await oscar.get("/admin/v1/session")).json()["csrf_token"]
        ended = (await oscar.post(acme, json={"name": "oscar's first"})).raise_for_status().json()
        (await oscar.delete(f"{acme}/{ended['id']}")).raise_for_status()
        for path, name in ((acme, "laptop"), (globex, "batch"), ("/v1/organization/admin_api_keys", "terraform")):
            (await oscar.post(path, json={"name": name})).raise_for_status()
        await choose(page, email, "Remove")
        asked = dialog(page, f"Remove {email}?")
        listed = asked.get_by_role("listitem")
        await expect(listed).to_have_count(3)
        for place, (name, whose) in enumerate(
            (("laptop", "of acme"), ("batch", "of globex"), ("terraform", "an operator key"))
        ):
            await expect(listed.nth(place)).to_contain_text(name)
            await expect(listed.nth(place)).to_contain_text(whose)
        await watched.screenshot("light/person-removed", whole=False)
        await confirm(page, f"Remove {email}?", "Remove person", typed=email)
        await expect_message(page, "is removed")
    with browser_house.operator() as operator:
        keys = operator.get(acme.removeprefix("/v1/organization"), params={"limit": 100}).json()["data"]
    assert [key["revoked_at"] is not None for key in keys if key["name"] == "laptop"] == [True]


async def test_an_admin_touches_no_owner_and_a_viewer_nobody(visit: Visit) -> None:
    watched = await visit(ADMIN)
    page = watched.page
    await watched.open("system/users")
    await expect(page.get_by_role("button", name=f"Actions on {VIEWER}")).to_have_count(1)
    await expect(page.get_by_role("button", name=f"Actions on {OWNER}")).to_have_count(0)
    await page.get_by_role("button", name="New person").click()
    assert await dialog(page, "New person").locator("option[value=owner]").count() == 0
    watched = await visit(VIEWER)
    for path, shown in (("users", VIEWER), ("webhooks", "Nobody is told")):
        await watched.open(f"system/{path}")
        await expect(watched.page.locator("main")).to_contain_text(shown)
        await expect(watched.page.get_by_role("button", name="New ")).to_have_count(0)
        await expect(watched.page.get_by_role("button", name="Actions on")).to_have_count(0)
    for path in ("admin-keys", "audit"):
        await watched.open(f"system/{path}")
        await expect(watched.page.get_by_role("heading", name="Your role does not show this")).to_be_visible()


async def test_an_operator_key_opens_the_admin_api_until_it_is_revoked(
    visit: Visit, browser_house: BrowserHouse
) -> None:
    watched = await visit()
    page = watched.page
    await watched.open("system/admin-keys")
    await page.get_by_role("button", name="New operator key").click()
    form = dialog(page, "New operator key")
    await form.get_by_label("Name").fill("terraform")
    await form.get_by_role("button", name="Create key").click()
    secret = await secret_of(dialog(page, "Your new operator key"), "Operator key")
    await page.get_by_role("button", name="I have stored it").click()

    def status() -> int:
        url = f"{browser_house.url}/v1/organization/projects"
        return httpx.get(url, headers={"authorization": f"Bearer {secret}"}).status_code

    assert status() == 200
    await expect(row(page, "terraform")).to_contain_text("read")
    await page.get_by_role("button", name="Revoke terraform").click()
    await confirm(page, "Revoke terraform?", "Revoke key", typed="terraform")
    await expect_message(page, "is revoked")
    await expect(row(page, "terraform")).to_have_count(0)
    assert status() == 401


async def test_a_webhook_is_set_with_its_secret_and_removed(visit: Visit) -> None:
    watched = await visit()
    page = watched.page
    await watched.open("system/webhooks")
    await page.get_by_role("button", name="New webhook").first.click()
    form = dialog(page, "New webhook")
    for wrong in ("", "example.com", "ftp://example.com", "https://ann@example.com"):
        await form.get_by_label("Address").fill(wrong)
        await form.get_by_role("button", name="Create webhook").click()
        await expect(form.locator(".field-error")).to_contain_text("begins with https://")
    await form.get_by_label("Address").fill("https://example.com/lorikeet")
    await form.get_by_label("Called for").select_option("all")
    await form.get_by_role("button", name="Create webhook").click()
    assert (await secret_of(dialog(page, "The webhook is set"), "Signing secret")).startswith("whsec_")
    await page.get_by_role("button", name="I have stored it").click()
    await expect(row(page, "https://example.com/lorikeet")).to_contain_text("not called yet")
    await expect(row(page, "https://example.com/lorikeet")).to_contain_text("response.cancelled")
    await page.get_by_role("button", name="Remove https://example.com/lorikeet").click()
    await confirm(page, "Remove this webhook?", "Remove webhook")
    await expect_message(page, "The webhook is removed")


async def test_the_audit_log_is_searched_and_verified(visit: Visit, browser_house: BrowserHouse) -> None:
    with browser_house.operator() as operator:
        project = operator.post("/projects", json={"name": "watched"}).json()
        operator.post(f"/projects/{project['id']}", json={"name": "watched closely"})
    watched = await visit(ADMIN)
    page = watched.page
    await watched.open("system/audit")
    await page.get_by_label("Id of what was changed").fill(project["id"])
    await page.get_by_role("button", name="Filter", exact=True).click()
    await expect(page.locator("tbody tr")).to_have_count(2)
    assert f"object={project['id']}" in page.url
    await row(page, "project.updated").get_by_role("link").first.click()
    entry = dialog(page, "project.updated")
    await expect(entry.locator("del")).to_have_text("watched")
    await expect(entry.locator("ins")).to_have_text("watched closely")
    await page.keyboard.press("Escape")
    await page.get_by_label("Event").fill("project.created")
    await page.keyboard.press("Enter")
    await expect(page.locator("tbody tr")).to_have_count(1)
    await page.get_by_role("button", name="Verify the chain").click()
    await expect(page.get_by_text("The chain is intact")).to_be_visible()
    assert await watched.violations() == []
