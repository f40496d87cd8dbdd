"""Members of a tenant: added by address or by id, given another role, removed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from playwright.async_api import Route, expect

from tests.browser.acts import confirm, dialog, expect_message, row, secret_of
from tests.browser.conftest import Visit
from tests.browser.house import ADMIN, BILLING, MEMBER, OWNER, VIEWER, BrowserHouse


def without(permission: str) -> Callable[[Route], Awaitable[None]]:
    """Return a route handler that takes a permission away from the session of the person signed in."""

    async def answer(route: Route) -> None:
        reply = await route.fetch()
        who = await reply.json()
        who["permissions"] = [each for each in who["permissions"] if each != permission]
        await route.fulfill(response=reply, json=who)

    return answer


async def test_members_come_and_go(visit: Visit, browser_house: BrowserHouse) -> None:
    initech = browser_house.projects["initech"]
    watched = await visit()
    page = watched.page
    await watched.open(f"tenants/{initech}/members")
    await expect(page.get_by_text("No member yet")).to_be_visible()
    await page.keyboard.press("n")
    form = dialog(page, "Add a member to initech")
    for wrong, sentence in (("", "Give an e-mail address"), ("peter", "no e-mail address")):
        await form.get_by_label("E-mail").fill(wrong)
        await form.get_by_role("button", name="Add member").click()
        await expect(form.locator(".field-error")).to_contain_text(sentence)
    await form.get_by_label("E-mail").fill(VIEWER)
    await form.get_by_role("button", name="Add member").click()
    await expect_message(page, "is viewer of initech")
    await expect(page.locator(".lead")).to_contain_text("1 member")  # else the empty list has a button, too

    await page.get_by_role("button", name="Add member").click()
    await form.get_by_label("E-mail").fill("peter@initech.test")
    await form.get_by_label("Role").select_option("admin")
    await form.get_by_role("button", name="Add member").click()
    password = await secret_of(dialog(page, "peter@initech.test is a member"), "Password")
    assert len(password) >= 20
    await page.get_by_role("button", name="I have passed it on").click()
    await expect(page.locator(".lead")).to_contain_text("2 members, 1 of whom")

    peter = await visit(None)
    peter.expect(f"40[134] GET /v1/organization/projects/{initech}")  # once he is removed
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

    size = page.viewport_size
    assert size is not None
    await page.set_viewport_size({"width": 800, "height": size["height"]})
    role, remove = (
        page.get_by_role("button", name=f"{act} peter@initech.test") for act in ("Change the role of", "Remove")
    )
    one, other = await role.bounding_box(), await remove.bounding_box()
    assert one is not None and other is not None and one["y"] == other["y"], "they stand in one line"
    await page.set_viewport_size(size)
    await role.click()
    form = dialog(page, "Role of peter@initech.test")
    await form.get_by_label("Role").select_option("billing")
    await form.get_by_role("button", name="Save").click()
    await expect_message(page, "is billing now")
    await expect(row(page, "peter@initech.test")).to_contain_text("Billing")
    for email in ("peter@initech.test", VIEWER):
        await page.get_by_role("button", name=f"Remove {email}").click()
        title = "Remove Victor?" if email == VIEWER else f"Remove {email}?"
        await confirm(page, title, "Remove member")
        await expect_message(page, "is no member any more")
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
    await expect(form.locator(".field-error")).to_contain_text("no user with this id")
    assert await form.get_by_label("Role").locator("option[value=owner]").count() == 0
    await form.get_by_label("User id").fill(bea["id"])
    await form.get_by_role("button", name="Add member").click()
    await expect_message(page, "is viewer of acme")
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


async def test_an_address_that_nobody_has_adds_nobody(visit: Visit, browser_house: BrowserHouse) -> None:
    """An admin may look people up but not make people, and the field of an unknown address says so."""
    globex = browser_house.projects["globex"]
    watched = await visit(ADMIN)
    page = watched.page
    await page.route("**/admin/v1/session", without("users.write"))
    await watched.open(f"tenants/{globex}/members")
    await page.get_by_role("button", name="Add member").first.click()
    form = dialog(page, "Add a member to globex")
    await form.get_by_label("E-mail").fill("nobody@lorikeet.test")
    await form.get_by_role("button", name="Add member").click()
    await expect(form.locator(".field-error")).to_contain_text("Nobody here has this address")
    with browser_house.operator() as operator:
        assert operator.get(f"/projects/{globex}/users").json()["data"] == []
    await page.unroute("**/admin/v1/session")


async def test_removing_a_member_names_the_keys_that_end(visit: Visit, browser_house: BrowserHouse) -> None:
    """The key that came with the tenant belongs to the tenant, so that it is not among the keys that end."""
    watched = await visit()
    page = watched.page
    await watched.open("tenants?new=1")
    await dialog(page, "New tenant").get_by_label("Name").fill("lastly")
    await dialog(page, "New tenant").get_by_role("button", name="Create tenant").click()
    await dialog(page, "lastly is ready").get_by_role("link", name="Open the tenant").click()
    await expect(page.get_by_role("heading", level=1, name="lastly")).to_be_visible()
    with browser_house.operator() as operator:
        (lastly,) = operator.get("/projects", params={"name": "lastly"}).json()["data"]
        (olivia,) = operator.get("/users", params={"email": OWNER}).json()["data"]
        path = f"/projects/{lastly['id']}"
        operator.post(f"{path}/users", json={"user_id": olivia["id"], "role": "admin"}).raise_for_status()
        (first,) = operator.get(f"{path}/api_keys").json()["data"]
        assert (first["name"], first["owner"]["type"]) == ("first key", "service_account")
        await watched.open(f"tenants/{lastly['id']}/keys")
        await page.get_by_role("button", name="New key").click()
        form = dialog(page, "New API key")
        await form.get_by_role("button", name="Create key").click()
        await expect(form.locator(".field-error")).to_contain_text("Give it a name")
        await form.get_by_label("Name", exact=True).fill("olivia's laptop")
        await form.get_by_role("button", name="Create key").click()
        await page.get_by_role("button", name="I have stored it").click()

        await watched.open(f"tenants/{lastly['id']}/members")
        await page.get_by_role("button", name=f"Remove {OWNER}").click()
        asked = dialog(page, "Remove Olivia?")
        await expect(asked.get_by_role("listitem")).to_have_count(1)
        await expect(asked.get_by_role("listitem")).to_contain_text("olivia's laptop")
        await watched.screenshot("light/member-removed", whole=False)
        await confirm(page, "Remove Olivia?", "Remove member")
        await expect_message(page, "is no member any more")
        revoked = {
            key["name"]: key["revoked_at"] is not None for key in operator.get(f"{path}/api_keys").json()["data"]
        }
        assert revoked == {"first key": False, "olivia's laptop": True}
