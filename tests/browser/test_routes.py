"""Routes: made, with errors shown at the policy, changed, explained, rolled back, deleted; viewers only look."""

from __future__ import annotations

import json

from playwright.async_api import expect

from tests.browser.acts import confirm, dialog, expect_message, row
from tests.browser.conftest import Visit
from tests.browser.house import VIEWER, BrowserHouse
from tests.gateway.live import BASE

ONE = {"root": {"target": BASE}}
TWO = {"root": {"fallback": {"nodes": [{"target": BASE}, {"target": f"{BASE}:support-bot"}], "on": ["failed"]}}}


async def test_a_route_lives_from_its_making_to_its_end(visit: Visit, browser_house: BrowserHouse) -> None:
    watched = await visit()
    page = watched.page
    await watched.open(f"tenants/{browser_house.projects['acme']}/routes")
    await page.get_by_role("button", name="New route").first.click()
    form = dialog(page, "New route")
    policy = form.get_by_label("Policy")
    await form.get_by_label("Name").fill("helper")
    await policy.fill("{root}")
    await form.get_by_role("button", name="Create route").click()
    await expect(form.locator(".field-error")).to_contain_text("This is not JSON")
    watched.expect("400 POST /v1/organization/projects/.*/routes$")
    await policy.fill(json.dumps({"root": {"fallback": {"nodes": [{"target": BASE}, {"target": "nobody"}]}}}))
    await form.get_by_role("button", name="Create route").click()
    await expect(form.locator(".field-error")).to_contain_text("document.root.fallback.nodes[1]")
    await expect(form.locator(".field-error")).to_contain_text("no model 'nobody'")
    assert await watched.violations() == []
    await policy.fill(json.dumps(ONE))
    await form.get_by_role("button", name="Create route").click()
    await expect_message(page, "The route helper answers")
    await expect(page.get_by_role("heading", level=1, name="helper")).to_be_visible()
    tree = page.get_by_role("list", name="Policy")
    await expect(tree).to_have_text(BASE)

    await page.get_by_role("button", name="Change", exact=True).click()
    form = dialog(page, "Change helper")
    await form.get_by_label("Policy").fill(json.dumps(TWO))
    await form.get_by_role("button", name="Save as a new version").click()
    await expect_message(page, "Version 2 of helper answers")
    await expect(tree).to_contain_text("one after the other, the next one on failed")
    await expect(tree.locator("li")).to_have_count(3)

    await page.get_by_role("button", name="Explain", exact=True).click()
    await expect(row(page, "failed: step 2")).to_contain_text(BASE)
    await expect(page.get_by_role("list", name="Decisions")).to_contain_text(
        "fallback: 2 in turn, the next one on failed"
    )
    await expect(tree.locator("li.taken")).to_have_count(2)
    assert await watched.violations() == []

    await page.get_by_role("button", name="Show version 1").click()
    await expect(dialog(page, "Version 1 of helper").get_by_role("list", name="Policy")).to_have_text(BASE)
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="Roll back to version 1").click()
    await confirm(page, "Let version 1 answer again?", "Roll back")
    await expect_message(page, "Version 1 of helper answers")
    await expect(tree.locator("li")).to_have_count(1)
    await expect(row(page, "v1")).to_contain_text("answers")

    await page.get_by_role("button", name="Delete helper").click()
    await confirm(page, "Delete the route helper?", "Delete the route")
    await expect_message(page, "The route helper is deleted")
    await expect(row(page, "assistant")).to_contain_text("conditional")
    await expect(row(page, "helper")).to_have_count(0)


async def test_a_viewer_reads_and_explains_and_changes_nothing(visit: Visit, browser_house: BrowserHouse) -> None:
    watched = await visit(VIEWER)
    page = watched.page
    await watched.open(f"tenants/{browser_house.projects['acme']}/routes")
    await row(page, "assistant").click()
    await expect(page.get_by_role("heading", level=1, name="assistant")).to_be_visible()
    for name in ("Change", "Delete assistant"):
        await expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)
    await page.get_by_label("Metadata").fill("plan=paid")
    await page.get_by_role("button", name="Explain", exact=True).click()
    await expect(page.get_by_role("list", name="Decisions")).to_contain_text("conditional: case 0 holds")


async def test_a_route_for_all_tenants_is_made_explained_and_found_by_a_tenant(
    visit: Visit, browser_house: BrowserHouse
) -> None:
    watched = await visit()
    page = watched.page
    await watched.open("models")
    await page.get_by_role("button", name="New route").click()
    form = dialog(page, "New route for all tenants")
    await form.get_by_label("Name").fill("everywhere")
    watched.expect("400 POST /v1/organization/routes$")
    await form.get_by_label("Policy").fill(json.dumps({"root": {"target": "nobody"}}))
    await form.get_by_role("button", name="Create route").click()
    await expect(form.locator(".field-error")).to_contain_text("no base model that all projects")
    await form.get_by_label("Policy").fill(json.dumps(ONE))
    assert await watched.violations() == []
    await form.get_by_role("button", name="Create route").click()
    await expect_message(page, "The route everywhere answers")
    await expect(page.get_by_role("heading", level=1, name="everywhere")).to_be_visible()
    await page.get_by_role("button", name="Explain", exact=True).click()
    await expect(page.locator(".field-error")).to_contain_text("Choose a tenant")
    await page.get_by_label("Tenant", exact=True).select_option("acme")
    await page.get_by_label("Body").fill(json.dumps({"messages": [{"role": "user", "content": "x"}]}))
    await page.get_by_role("button", name="Explain", exact=True).click()
    await expect(page.get_by_role("table", name="Steps")).to_contain_text(BASE)
    assert await watched.violations() == []
    await watched.open(f"tenants/{browser_house.projects['acme']}/routes")
    await expect(page.get_by_role("table", name="Routes of the operator")).to_contain_text("everywhere")
    await watched.open("routes/everywhere")
    await page.get_by_role("button", name="Delete everywhere").click()
    await confirm(page, "Delete the route everywhere?", "Delete the route")
    await expect_message(page, "The route everywhere is deleted")
