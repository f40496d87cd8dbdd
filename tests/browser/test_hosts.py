"""Hosts are labelled, drained and used again; a pool says where replicas may start, and why their number changes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import expect

from gateway.db.ids import new_id
from gateway.db.ledger.journals import forget_journals
from gateway.db.pool import Database
from gateway.db.pools.hosts import remove_host
from gateway.db.pools.scaling import scale_pools
from gateway.db.pools.scaling_rows import report_loads
from gateway.domain.pools.capacity import Node
from gateway.domain.pools.scaling import Load
from tests.browser.acts import confirm, dialog, expect_message, row
from tests.browser.conftest import Mode, Visit
from tests.browser.house import VIEWER, BrowserHouse
from tests.gateway.pools.acting_agent import Agent

BUSY = Load(num_ready=1, places=8, num_running=8, num_waiting=12, oldest_wait_s=3.0, idle_s=0.0)
LOST = """
    INSERT INTO journals (id, open_requests, heard_at, folder)
    VALUES ('journal_lost', 7, now() - interval '1 hour', 'gw-9:/var/lib/lorikeet/journal')
"""


@pytest_asyncio.fixture(loop_scope="session")
async def database(browser_house: BrowserHouse) -> AsyncIterator[Database]:
    async with await Database.connect(browser_house.dsn) as database:
        yield database


@pytest_asyncio.fixture(loop_scope="session")
async def agent(database: Database) -> AsyncIterator[Agent]:
    """Give the agent of a host of the test's own, which is removed after the test."""
    agent = Agent(database, new_id("host"), "rack-7")
    await agent.claim()
    yield agent
    async with database.acquire() as conn:
        await remove_host(conn, agent.host_id)


@asynccontextmanager
async def pool_of(house: BrowserHouse, agent: Agent, name: str, **body: Any) -> AsyncIterator[tuple[str, str]]:
    """Create a pool with a replica on the agent's host, and give the ids of the pool and the replica."""
    shape = {"name": name, "model": "demo", "access": "listed", "grants": [{"project_id": house.projects["hooli"]}]}
    with house.operator() as operator:
        pool_id = operator.post("/pools", json=shape | body).json()["id"]
    await agent.prepare(pool_id)
    replica_id = await agent.start(pool_id)
    yield pool_id, replica_id
    with house.operator() as operator:
        operator.post(f"/pools/{pool_id}/drain")
        await agent.stop(replica_id)
        assert operator.delete(f"/pools/{pool_id}").status_code == 200


async def test_a_host_is_labelled_drained_and_used_again(
    visit: Visit, browser_house: BrowserHouse, agent: Agent
) -> None:
    async with pool_of(browser_house, agent, "on-rack"):
        watched = await visit()
        page = watched.page
        await watched.open("models")
        await page.get_by_role("link", name="rack-7").click()
        await expect(page.get_by_role("heading", level=1, name="rack-7")).to_be_visible()
        await expect(page.locator(".lead")).to_contain_text("agent runs")
        await expect(row(page, "on-rack")).to_contain_text("ready")
        await expect(page.get_by_text("held by its agent")).to_be_visible()

        await page.get_by_role("button", name="Labels").click()
        form = dialog(page, "Labels of rack-7")
        await form.get_by_label("Labels").fill("Zone west")
        await form.get_by_role("button", name="Save").click()
        await expect(form.locator(".field-error")).to_contain_text("is no label")
        await form.get_by_label("Labels").fill("zone=east\nrack=7")
        assert await watched.violations() == []
        await form.get_by_role("button", name="Save").click()
        await expect_message(page, "The labels of rack-7 are set")
        await expect(page.locator(".lead")).to_contain_text("zone=east")

        await page.get_by_role("button", name="Drain").click()
        await expect(dialog(page, "Drain rack-7?")).to_contain_text("1 replica goes, each once another one is ready")
        await confirm(page, "Drain rack-7?", "Drain")
        await expect_message(page, "rack-7 drains")
        await expect(page.locator(".lead")).to_contain_text("drained")
        assert await watched.violations() == []
        await watched.screenshot("light/host-drained")
        await page.get_by_role("button", name="Use again").click()
        await confirm(page, "Use rack-7 again?", "Use again")
        await expect_message(page, "rack-7 is used again")

        await page.get_by_role("button", name="More actions").click()
        await page.get_by_role("menuitem", name="Remove").click()
        asked = dialog(page, "Remove rack-7?")
        await asked.get_by_label("Type").fill("rack-7")
        await expect(asked.get_by_role("button", name="Remove host")).to_be_disabled()
        await asked.get_by_label("Remove it with 1 replica").check()
        await expect(asked.get_by_role("button", name="Remove host")).to_be_enabled()
        assert await watched.violations() == []
        await page.keyboard.press("Escape")
        await page.get_by_role("link", name="on-rack").click()
        await expect(page.get_by_role("heading", level=1, name="on-rack")).to_be_visible()
        await watched.turn_to("account")  # away from the pool, which will be no more


@pytest.mark.parametrize("mode", ["light", "phone"])
async def test_a_cluster_is_shown_with_its_nodes(visit: Visit, agent: Agent, mode: Mode) -> None:
    await agent.claim(placement="ray", force=True)
    await agent.tell_nodes(
        Node("10.0.0.7", "node-7", 4, 8 << 30, 1, {"zone": "west"}), Node("10.0.0.8", "node-8", 2, 4 << 30, 0)
    )
    watched = await visit(mode=mode)
    page = watched.page
    await watched.open(f"hosts/{agent.host_id}")
    await expect(page.locator(".lead")).to_contain_text("2 nodes · 6 processors · 1 GPU · 0 replicas")
    await expect(page.locator(".lead")).to_contain_text("Ray cluster")
    nodes = page.get_by_role("table", name="Nodes")
    await expect(nodes.locator("tbody tr", has_text="node-7")).to_contain_text("zone=west")
    await expect(nodes.locator("tbody tr", has_text="node-8")).to_contain_text("10.0.0.8")
    assert await watched.violations(contrast=mode != "phone") == []
    assert await page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
    await watched.screenshot(f"{mode}/cluster")


@pytest.mark.parametrize("mode", ["light", "dark", "phone"])
async def test_a_pool_chooses_its_hosts_by_labels_and_each_host_says_why(
    visit: Visit, browser_house: BrowserHouse, agent: Agent, mode: Mode
) -> None:
    async with pool_of(browser_house, agent, f"choosy-{mode}") as (pool_id, _):
        watched = await visit(mode=mode)
        page = watched.page
        await watched.open(f"models/{pool_id}")
        await expect(page.get_by_text("On any host, where most memory is free.")).to_be_visible()
        await page.get_by_role("button", name="More actions").click()
        await page.get_by_role("menuitem", name="Choose hosts by labels").click()
        form = dialog(page, f"Choose the hosts of choosy-{mode}")
        await form.get_by_label("Labels that a host must have").fill("zone=north")
        await expect(form.get_by_role("note")).to_contain_text("No host has such labels")
        await form.get_by_label("Labels that a host must have").fill("zone=west")
        await expect(form.get_by_role("note")).to_contain_text("gpu-1")
        await form.get_by_label("Labels that a host must not have").fill("disk=ssd")
        await expect(form.get_by_role("note")).to_contain_text("No host has such labels")
        assert await watched.violations(contrast=mode != "phone") == []
        await form.get_by_role("button", name="Choose").click()
        await expect_message(page, f"The hosts of choosy-{mode} are chosen")
        await expect(page.get_by_text("On hosts with zone=west, not disk=ssd")).to_be_visible()
        placement = page.get_by_role("table", name="Where replicas start")
        await expect(placement.locator("tbody tr", has_text="gpu-1").first).to_contain_text("which the pool excludes")
        await expect(placement.locator("tbody tr", has_text="rack-7").first).to_contain_text("has no label zone=west")
        assert await watched.violations(contrast=mode != "phone") == []
        assert await page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
        await watched.screenshot(f"{mode}/pool-placed")
        with browser_house.operator() as operator:
            pool = operator.get(f"/pools/{pool_id}").json()
        assert (pool["placement"], pool["exclusion"]) == ({"zone": "west"}, {"disk": ["ssd"]})
        await watched.turn_to("account")


@pytest.mark.parametrize("mode", ["light", "dark", "phone"])
async def test_a_pool_follows_its_load_and_says_when_and_why_its_number_changed(
    visit: Visit, browser_house: BrowserHouse, agent: Agent, database: Database, mode: Mode
) -> None:
    async with pool_of(browser_house, agent, f"scaled-{mode}") as (pool_id, _):
        watched = await visit(mode=mode)
        page = watched.page
        await watched.open(f"models/{pool_id}")
        await expect(page.get_by_text("The number has not changed yet")).to_be_visible()
        await page.get_by_role("button", name="More actions").click()
        await page.get_by_role("menuitem", name="Follow the load").click()
        form = dialog(page, f"Let scaled-{mode} follow its load")
        await form.get_by_label("Fewest replicas").fill("9")
        await form.get_by_role("button", name="Follow the load").click()
        await expect(form.locator(".field-error")).to_contain_text("more than the most")
        await form.get_by_label("Fewest replicas").fill("0")
        await expect(form.get_by_role("note")).to_contain_text("waits for a start")
        await form.get_by_label("Fewest replicas").fill("1")
        assert await watched.violations(contrast=mode != "phone") == []
        await form.get_by_role("button", name="Follow the load").click()
        await expect_message(page, f"scaled-{mode} follows its load")
        await expect(page.get_by_text("It follows the load between two bounds.")).to_be_visible()
        async with database.acquire() as conn:
            await report_loads(conn, "gateway_of_the_test", {pool_id: BUSY})
            [change] = [
                each for each in await scale_pools(conn, agent.host_id, agent.generation) if each.pool_id == pool_id
            ]
        assert (change.before, change.after) == (1, 4)
        await watched.open(f"models/{pool_id}")
        listed = page.get_by_role("table", name="Changes of the number of replicas")
        await expect(listed.locator("tbody tr").first).to_contain_text("12 wait")
        await expect(listed.locator("tbody tr").first).to_contain_text("1 → 4")
        await page.get_by_role("button", name="Show as table").first.click()
        await expect(page.get_by_role("table", name="Replicas wanted").locator("tbody tr").first).to_contain_text("4")
        assert await watched.violations(contrast=mode != "phone") == []
        assert await page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
        await watched.screenshot(f"{mode}/pool-scaled")
        await page.get_by_role("button", name="More actions").click()
        await page.get_by_role("menuitem", name="Follow the load no more").click()
        await confirm(page, "Keep 4 replicas?", "Keep the number")
        await expect_message(page, f"scaled-{mode} follows its load no more")
        await expect(page.get_by_text("It stays as it is set, whatever the load is.")).to_be_visible()
        await watched.turn_to("account")


async def test_a_viewer_sees_hosts_and_usage_that_a_lost_host_took_along_and_changes_nothing(
    visit: Visit, browser_house: BrowserHouse, agent: Agent, database: Database
) -> None:
    async with database.acquire() as conn:
        await conn.execute(LOST)
    await agent.die()
    watched = await visit(VIEWER)
    page = watched.page
    await watched.open("models")
    lost = page.get_by_role("note").filter(has_text="Usage not yet seen")
    await expect(lost).to_contain_text("7 requests are in journals of 1 gateway that is gone")
    await expect(lost).to_contain_text("on gw-9")
    assert await watched.violations() == []
    await page.get_by_role("link", name="rack-7").click()
    await expect(page.get_by_role("note")).to_contain_text("Nothing runs there.")
    await expect(page.get_by_text("No replica runs there")).to_be_visible()
    for name in ("Drain", "Labels", "More actions"):
        await expect(page.get_by_role("button", name=name)).to_have_count(0)
    watched.expect("404 GET /v1/organization/hosts/host_nobody_knows")
    await watched.open("hosts/host_nobody_knows")
    await expect(page.get_by_text("There is no host with this id")).to_be_visible()
    async with database.acquire() as conn:
        await forget_journals(conn, ["journal_lost"])
