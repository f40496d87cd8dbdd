"""Members of a tenant: added by address or by id, given another role, removed."""

from __future__ import annotations

from playwright.async_api import expect

from tests.browser.acts import confirm, dialog, row, secret_of, told
from tests.browser.conftest import Visit
from tests.browser.house import BILLING, MEMBER, VIEWER, BrowserHouse


async def test_members_come_and_go(visit: Visit, browser_house: BrowserHouse) -> None:
    initech = browser_house.projects["initech"]
    watched = await visit()
    page = watched.page
    await watched.open(f"tenants/{initech}/members")
    await expect(page.get_by_text("No member yet")).to_be_visible()
    await page.keyboard.press("n")
    form = dialog(page, "Add a member to initech")
    await form.get_by_label("E-mail").fill(VIEWER)
    await form.get_by_role("button", name="Add member").click()
    await told(page, "is viewer of initech")

    await page.get_by_role("button", name="Add member").click()
    await form.get_by_label("E-mail").fill("peter@initech.test")
    await form.get_by_label("Role").select_option("admin")
    await form.get_by_role("button", name="Add member").click()
    password = await secret_of(dialog(page, "peter@initech.test is a member"), "Password")
    assert len(password) >= 20
    await page.get_by_role("button", name="I have passed it on").click()
    await expect(page.locator(".lead")).to_contain_text("2 members, 1 of whom")

    peter = await visit(None)
    await peter.open("")
    await peter.page.get_by_label("E-mail").fill("peter@initech.test")
    await peter.page.get_by_label("Password").fill(password)
    await peter.page.keyboard.press("Enter")
    await peter.page.get_by_role("link", name="Keys").first.click()
    await expect(peter.page.get_by_role("heading", level=1, name="initech")).to_be_visible()
    await peter.page.get_by_role("link", name="Settings").click()
    await peter.page.get_by_label("Log requests and replies").check()
    await peter.page.get_by_label("Days until they are deleted").fill("3")
    await peter.page.get_by_role("button", name="Save").click()
    await expect(peter.page.locator(".lead")).to_contain_text("for 3 days")
    await expect(peter.page.get_by_role("button", name="Rename")).to_have_count(0)

    await page.get_by_role("button", name="Change the role of peter@initech.test").click()
    form = dialog(page, "Role of peter@initech.test")
    await form.get_by_label("Role").select_option("billing")
    await form.get_by_role("button", name="Save").click()
    await told(page, "is billing now")
    await expect(row(page, "peter@initech.test")).to_contain_text("Billing")
    for email in ("peter@initech.test", VIEWER):
        await page.get_by_role("button", name=f"Remove {email}").click()
        title = "Remove Victor?" if email == VIEWER else f"Remove {email}?"
        await confirm(page, title, "Remove member")
        await told(page, "is no member any more")
    await expect(page.get_by_text("No member yet")).to_be_visible()


async def test_a_tenants_own_people_add_others_by_id(visit: Visit, browser_house: BrowserHouse) -> None:
    acme = browser_house.projects["acme"]
    with browser_house.operator() as operator:
        (bea,) = operator.get("/users", params={"email": BILLING}).json()["data"]
    watched = await visit(MEMBER)
    page = watched.page
    await watched.open(f"tenants/{acme}/members")
    await page.get_by_role("button", name="Add member").click()
    form = dialog(page, "Add a member to acme")
    watched.expect(f"400 POST /v1/organization/projects/{acme}/users")
    await form.get_by_label("User id").fill("user_nobody")
    await form.get_by_role("button", name="Add member").click()
    await expect(form.locator(".field-error")).to_contain_text("no such user")
    assert await form.get_by_label("Role").locator("option[value=owner]").count() == 0
    await form.get_by_label("User id").fill(bea["id"])
    await form.get_by_role("button", name="Add member").click()
    await told(page, "is viewer of acme")
    await page.get_by_role("button", name=f"Remove {BILLING}").click()
    await confirm(page, "Remove Bea?", "Remove member")

    watched = await visit(VIEWER)
    await watched.open(f"tenants/{acme}/members")
    await expect(row(watched.page, MEMBER)).to_be_visible()
    await expect(watched.page.get_by_role("button", name="Add member")).to_have_count(0)
    await expect(watched.page.get_by_role("button", name="Remove")).to_have_count(0)

    watched = await visit(BILLING)
    await watched.open(f"tenants/{acme}/members")
    await expect(watched.page.get_by_role("heading", name="Your role does not show this")).to_be_visible()
