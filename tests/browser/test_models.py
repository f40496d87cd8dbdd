"""Models: pools are made, scaled, changed, drained and removed over rows; a tenant's people see their bases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio
from playwright.async_api import expect

from gateway.db.pool import Database
from tests.browser.acts import choose, confirm, dialog, expect_message, row
from tests.browser.conftest import Visit
from tests.browser.house import MEMBER, VIEWER, BrowserHouse
from tests.gateway.pools.acting_agent import Agent


@pytest_asyncio.fixture(loop_scope="session")
async def agent(browser_house: BrowserHouse) -> AsyncIterator[Agent]:
    """Give the agent of a second host."""
    async with await Database.connect(browser_house.dsn) as database:
        agent = Agent(database, "host_two", "cpu-2")
        await agent.claim()
        yield agent
        await agent.die()


def pool_named(house: BrowserHouse, name: str) -> dict[str, Any]:
    with house.operator() as operator:
        pools = operator.get("/pools").json()["data"]
    (found,) = [pool for pool in pools if pool["name"] == name]
    return dict(found)


async def test_a_pool_lives_from_its_making_to_its_removal(
    visit: Visit, browser_house: BrowserHouse, agent: Agent
) -> None:
    watched = await visit()
    page = watched.page
    lead = page.locator(".lead")
    watched.expect("400 POST /v1/organization/pools$")
    await watched.open("models")
    await page.get_by_role("button", name="New pool").first.click()
    form = dialog(page, "New pool")
    await form.get_by_label("Name").fill("spare")
    await form.get_by_label("Model").fill("no model")
    await form.get_by_label("Engine settings").fill("max_num_seqs")
    await form.get_by_role("button", name="Create pool").click()
    await expect(form.locator(".field-error")).to_contain_text("is no setting")
    await form.get_by_label("Engine settings").fill("max_num_seqs=8")
    await form.get_by_role("button", name="Create pool").click()
    await expect(form.locator(".field-error")).to_contain_text("expected 'demo'")
    await form.get_by_label("Model").fill("demo")
    await form.get_by_label("Who may use it").select_option("listed")
    await form.get_by_label("hooli").check()
    await expect(form.get_by_role("note")).to_contain_text("then 1 replica starts")
    await expect(form.get_by_role("note")).to_contain_text("one tenant can ask for “spare”")
    assert await watched.violations() == []
    await form.get_by_role("button", name="Create pool").click()
    await expect(page.get_by_role("heading", level=1, name="spare")).to_be_visible()
    await expect(lead).to_contain_text("Nobody answers requests for it.")
    await expect(page.get_by_role("heading", name="Revision 1 starts")).to_be_visible()

    pool_id = pool_named(browser_house, "spare")["id"]
    await agent.prepare(pool_id)
    first = await agent.start(pool_id)
    await expect(lead).to_contain_text("1 replica of revision 1 answers requests.")
    await expect(row(page, first)).to_contain_text("cpu-2")

    await page.get_by_role("button", name="Scale").click()
    form = dialog(page, "Scale spare")
    await form.get_by_label("Replicas").fill("2")
    await expect(form.get_by_role("note")).to_contain_text("1 replica more starts, where there is room: about 2 GiB")
    await form.get_by_role("button", name="Scale").click()
    await expect_message(page, "spare is to run 2 replicas")
    await expect(lead).to_contain_text("1 of 2 replicas is ready.")
    second = await agent.start(pool_id)
    await expect(lead).to_contain_text("2 replicas of revision 1 answer requests.")

    await page.get_by_role("button", name="More actions").click()
    await page.get_by_role("menuitem", name="Change model or settings").click()
    form = dialog(page, "Change what spare serves")
    await form.get_by_label("Engine settings").fill("max_num_seqs=16")
    await expect(form.get_by_role("note")).to_contain_text("Until then revision 1 serves; if the new one fails")
    await form.get_by_role("button", name="Change", exact=True).click()
    await expect_message(page, "spare changes to revision 2")
    await expect(page.get_by_role("heading", name="Revision 2 takes the place of revision 1")).to_be_visible()
    await agent.prepare(pool_id, 2)
    third = await agent.begin(pool_id, 2, why="reading the weights")
    await expect(page.locator("li[aria-current=step]")).to_have_text("Start and try replicas")
    await expect(page.get_by_role("meter", name="Revision 1 still serving")).to_have_attribute("aria-valuenow", "2")
    await expect(page.locator("tr.differs")).to_contain_text("max_num_seqs=16")
    assert await watched.violations() == []
    await watched.screenshot("light/pool-changing")
    await page.get_by_role("button", name="Give it up").click()
    await confirm(page, "Give up revision 2?", "Give it up")
    await expect_message(page, "spare stays at revision 1")
    await agent.stop(third)

    await choose(page, first, "Replace")
    await confirm(page, "Replace this replica?", "Replace")
    await expect(row(page, first)).to_contain_text("to be replaced")
    await choose(page, second, "Drain")
    await confirm(page, "Drain this replica?", "Drain")
    await expect(row(page, second)).to_contain_text("draining")
    await agent.stop(second)
    await expect(row(page, second)).to_have_count(0)

    await page.get_by_role("button", name="More actions").click()
    await page.get_by_role("menuitem", name="Drain").click()
    await confirm(page, "Drain spare?", "Drain")
    await agent.stop(first)
    await expect(lead).to_contain_text("stopped")
    await page.get_by_role("button", name="More actions").click()
    await page.get_by_role("menuitem", name="Remove").click()
    await confirm(page, "Remove spare?", "Remove pool", typed="spare")
    await expect_message(page, "The pool spare is removed")
    await expect(page.get_by_role("heading", level=1, name="Models")).to_be_visible()
    await expect(row(page, "spare")).to_have_count(0)


async def test_a_pool_is_given_to_a_whole_organization_and_found_by_its_name(
    visit: Visit, browser_house: BrowserHouse
) -> None:
    body = {"name": "Granted-7B", "model": "demo", "num_replicas": 0, "access": "listed"}
    with browser_house.operator() as operator:
        made = operator.post("/pools", json=body | {"grants": [{"project_id": browser_house.projects["acme"]}]}).json()
        organization = operator.get("").json()
    whole = f"All tenants of {organization['name']}"
    watched = await visit()
    page = watched.page
    await watched.open("")
    await page.keyboard.press("/")
    await page.get_by_role("combobox", name="Search").press_sequentially("granted")
    await expect(page.get_by_role("option", name="Granted-7B")).to_contain_text("pool")
    await watched.screenshot("light/search-finds-a-pool", whole=False)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1, name="Granted-7B")).to_be_visible()
    await page.get_by_role("button", name="More actions").click()
    await page.get_by_role("menuitem", name="Change who may use it").click()
    form = dialog(page, "Who may use Granted-7B?")
    await expect(form.get_by_label("acme")).to_be_checked()
    await form.get_by_label("acme").uncheck()
    await form.get_by_role("button", name="Save").click()
    await expect(form.get_by_text("Choose at least one tenant.")).to_be_visible()
    await form.get_by_label(whole).check()
    assert await watched.violations() == []
    await watched.screenshot("light/pool-access", whole=False)
    await form.get_by_role("button", name="Save").click()
    await expect_message(page, "Who may use Granted-7B is set")
    await expect(
        page.get_by_text(whole.lower().replace(organization["name"].lower(), organization["name"]))
    ).to_be_visible()
    assert pool_named(browser_house, "Granted-7B")["grants"] == [
        {"organization_id": organization["id"], "project_id": None}
    ]
    await watched.turn_to("account")  # away from the pool, which will be no more
    with browser_house.operator() as operator:
        operator.post(f"/pools/{made['id']}", json={"grants": [{"project_id": browser_house.projects["hooli"]}]})
    watched = await visit(MEMBER)
    await watched.open("")
    await watched.page.keyboard.press("/")
    await watched.page.get_by_role("combobox", name="Search").press_sequentially("granted")
    await expect(watched.page.get_by_text("Nothing found for")).to_be_visible()
    with browser_house.operator() as operator:
        assert operator.delete(f"/pools/{made['id']}").status_code == 200


async def test_what_is_wrong_with_a_pool_is_seen_at_once(visit: Visit, browser_house: BrowserHouse) -> None:
    watched = await visit(VIEWER)
    page = watched.page
    await watched.open("models")
    pool = row(page, "qwen3-0.6b")
    await expect(pool).to_contain_text("The GPU has too little free memory")
    await expect(page.get_by_role("meter", name="GPU 1")).to_have_attribute(
        "aria-valuetext", "2 GiB used, 78 GiB free of 80 GiB"
    )
    await expect(page.get_by_role("button", name="New pool")).to_have_count(0)
    await pool.get_by_role("link").first.click()
    await expect(row(page, "reading the weights")).to_contain_text("GPU 0")
    await expect(row(page, "failed 1 time in a row")).to_contain_text("GPU 1")
    await expect(page.get_by_role("button", name="Scale")).to_have_count(0)
    await expect(page.get_by_role("button", name="Actions on")).to_have_count(0)


async def test_a_tenants_people_see_their_bases_with_context_and_price(
    visit: Visit, browser_house: BrowserHouse, agent: Agent
) -> None:
    body = {"name": "for-acme", "model": "demo", "settings": {"max_model_len": 4096}, "access": "listed"}
    with browser_house.operator() as operator:
        made = operator.post("/pools", json=body | {"grants": [{"project_id": browser_house.projects["acme"]}]}).json()
    await agent.prepare(made["id"])
    replica_id = await agent.start(made["id"])
    watched = await visit(MEMBER)
    page = watched.page
    await watched.open("models")
    base = row(page, "for-acme")
    for text in ("ready", "4.1k", "$0.20", "$0.80"):
        await expect(base).to_contain_text(text)
    await expect(row(page, "qwen3-0.6b")).to_have_count(0)
    assert await watched.violations() == []
    await watched.screenshot("light/models-of-a-member")
    with browser_house.operator() as operator:
        operator.post(f"/pools/{made['id']}/drain")
        await agent.stop(replica_id)
        assert operator.delete(f"/pools/{made['id']}").status_code == 200


async def test_servers_of_another_maker_are_started_by_agents(
    visit: Visit, browser_house: BrowserHouse, agent: Agent
) -> None:
    watched = await visit()
    page = watched.page
    await watched.open("models")
    watched.expect("400 POST /v1/organization/pools$")
    await page.get_by_role("button", name="New pool").first.click()
    form = dialog(page, "New pool")
    await form.get_by_label("Name").fill("started")
    await form.get_by_label("Engine", exact=True).select_option("llamacpp")
    await form.get_by_label("Model").fill("Qwen/Qwen3-0.6B")
    await expect(form.get_by_role("note")).to_contain_text("each later one waits for a start of its servers")
    await form.get_by_role("button", name="Create pool").click()
    await expect(form.locator(".field-error")).to_contain_text("llama.cpp reads a .gguf file")
    await form.get_by_label("Model").fill("/models/small.gguf")
    await form.get_by_label("Engine settings").fill("num_slots=8")
    await form.get_by_role("button", name="Create pool").click()
    await expect(form.locator(".field-error")).to_contain_text("has llama.cpp's llama-server")
    await agent.claim(0, "llamacpp")
    assert await watched.violations() == []
    await form.get_by_role("button", name="Create pool").click()
    await expect(page.get_by_role("heading", level=1, name="started")).to_be_visible()
    await expect(page.get_by_text("llama.cpp's server, which agents start")).to_be_visible()
    await page.get_by_role("button", name="More actions").click()
    await page.get_by_role("menuitem", name="Load waiting adapters").click()
    await expect(dialog(page, "Start the servers of started anew?")).to_contain_text("The servers have all adapters")
    pool = pool_named(browser_house, "started")
    assert (pool["engine"], pool["settings"]["num_slots"]) == ("llamacpp", "8")
    await watched.open("models")  # the pool's own page would ask for it once it is gone
    with browser_house.operator() as operator:
        operator.post(f"/pools/{pool['id']}/drain")
        assert operator.delete(f"/pools/{pool['id']}").status_code == 200


async def test_servers_elsewhere_are_connected_get_a_key_and_are_changed(
    visit: Visit, browser_house: BrowserHouse
) -> None:
    watched = await visit()
    page = watched.page
    await watched.open("models")
    await page.get_by_role("button", name="Connect servers").click()
    form = dialog(page, "Connect servers")
    await form.get_by_label("Name").fill("theirs")
    await form.get_by_role("button", name="Create pool").click()
    await expect(form.locator(".field-error")).to_contain_text("Give the address of one server at least.")
    watched.expect("400 POST /v1/organization/pools$")
    await form.get_by_label("Addresses", exact=True).fill("http://127.0.0.1:9")
    await form.get_by_role("button", name="Create pool").click()
    await expect(form.locator(".field-error")).to_contain_text("private")
    await form.get_by_label("They may be at private addresses").check()
    await form.get_by_label("Requests are sent with").select_option("allowed")
    await form.get_by_label("More settings").fill("served_model=big-1")
    await form.locator("input[type=password]").fill("sk-0123456789abcdef-AAAA")
    await expect(form.get_by_role("note")).to_contain_text("asks the 1 server how it is")
    assert await watched.violations() == []
    await form.get_by_role("button", name="Create pool").click()
    await expect_message(page, "The pool theirs is made")
    await expect(page.get_by_role("heading", level=1, name="theirs")).to_be_visible()
    await expect(page.get_by_text("…AAAA")).to_be_visible()
    await expect(page.get_by_text("A tenant's own key where it brings one")).to_be_visible()

    await page.get_by_role("button", name="More actions").click()
    await page.get_by_role("menuitem", name="Replace the servers' key").click()
    form = dialog(page, "Key for the servers of theirs")
    await form.get_by_label("Key").fill("sk-0123456789abcdef-BBBB")
    await form.get_by_role("button", name="Save key").click()
    await expect_message(page, "theirs sends its servers the key")
    await expect(page.get_by_text("…BBBB")).to_be_visible()
    await page.get_by_role("button", name="More actions").click()
    await page.get_by_role("menuitem", name="Remove the servers' key").click()
    await confirm(page, "Remove the key of theirs?", "Remove key")
    await expect_message(page, "theirs has no key any more")

    await page.get_by_role("button", name="More actions").click()
    await page.get_by_role("menuitem", name="Change servers or settings").click()
    form = dialog(page, "Change the servers of theirs")
    await expect(form.get_by_label("They may be at private addresses")).to_be_checked()
    await form.get_by_label("Addresses", exact=True).fill("http://127.0.0.1:9\nhttp://127.0.0.1:10")
    await form.get_by_role("button", name="Change", exact=True).click()
    await expect_message(page, "theirs changes to revision 2")
    assert await watched.violations() == []

    await watched.open(f"tenants/{browser_house.projects['acme']}/settings")
    await row(page, "theirs").get_by_role("button", name="Set key").click()
    form = dialog(page, "Key for theirs")
    await form.get_by_role("button", name="Save key").click()
    await expect(form.locator(".field-error")).to_contain_text("Paste the key.")
    await form.get_by_label("Key").fill("sk-0123456789abcdef-CCCC")
    await form.get_by_role("button", name="Save key").click()
    await expect_message(page, "Requests to theirs are sent with this tenant's key")
    await expect(row(page, "theirs")).to_contain_text("…CCCC")
    assert await watched.violations() == []
    await row(page, "theirs").get_by_role("button", name="Remove").click()
    await confirm(page, "Remove the key for theirs?", "Remove key")
    await expect_message(page, "The key for theirs is removed")
    await expect(row(page, "theirs")).to_contain_text("the operator's")

    pool_id = pool_named(browser_house, "theirs")["id"]
    await watched.open(f"models/{pool_id}")
    await page.get_by_role("button", name="More actions").click()
    await page.get_by_role("menuitem", name="Drain").click()
    await confirm(page, "Drain theirs?", "Drain")
    await expect(page.locator(".lead")).to_contain_text("Nobody answers")
    await watched.open("models")  # the pool's own page would ask for it once it is gone
    with browser_house.operator() as operator:
        assert operator.delete(f"/pools/{pool_id}").status_code == 200
