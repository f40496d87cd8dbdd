"""Adapters: uploaded by hand, promoted, rolled back, renamed, shared, configured and removed, by people who may."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.async_api import Page, Route, expect

from engine.config import model_digest
from gateway.db.pool import Database
from tests.browser.acts import expect_message
from tests.browser.conftest import Visit
from tests.browser.house import BILLING, MEMBER, VIEWER, BrowserHouse
from tests.browser.watched import WatchedPage
from tests.gateway.admin_server import write_adapter
from tests.gateway.live import BASE
from tests.gateway.model_folder import make_model_folder
from tests.gateway.pools.acting_agent import Agent

FILES = ("adapter_config.json", "adapter_model.safetensors")


def good_adapter(folder: Path, *, seed: int, rank: int = 2) -> Path:
    """Write an adapter that fits the house's base model."""
    return write_adapter(folder, seed=seed, rank=rank, in_features=32, out_features=32, num_layers=1)


def files_of(folder: Path) -> list[Path]:
    return [folder / name for name in FILES]


async def choose(page: Page, folder: Path) -> None:
    await page.get_by_label("Files of an adapter").set_input_files(files_of(folder))


async def confirm(page: Page, verb: str, name: str = "") -> None:
    """Confirm the topmost dialog and wait until the dialog is gone.

    name: the name to type before the dialog's button is enabled; "" where no name is wanted.
    """
    dialog = page.get_by_role("dialog").last
    button = dialog.get_by_role("button", name=verb, exact=True)
    if name:
        await expect(button).to_be_disabled()
        await dialog.get_by_role("textbox").fill(name)
    await button.click()
    await expect(button).to_have_count(0)


def add(house: BrowserHouse, project: str, name: str, folder: Path) -> None:
    """Upload an adapter over HTTP in one request."""
    files = {part: (part, (folder / part).read_bytes()) for part in FILES}
    with house.operator() as client:
        reply = client.post(f"/projects/{house.projects[project]}/adapters", data={"name": name}, files=files)
    assert reply.status_code == 200, reply.text


async def test_a_version_lives_from_upload_to_deletion(
    visit: Visit, browser_house: BrowserHouse, tmp_path: Path
) -> None:
    watched = await visit()
    page = watched.page
    watched.expect("400 POST .*/adapter_imports$")
    project = browser_house.projects["hooli"]
    await watched.open(f"adapters?project={project}")
    await expect(page.get_by_role("heading", name="No adapter yet")).to_be_visible()
    await page.get_by_role("button", name="Upload an adapter").first.click()
    await choose(page, good_adapter(tmp_path / "one", seed=1))
    await expect(page.get_by_text("Rank 2 · alpha 4 · q_proj")).to_be_visible()
    await page.get_by_label("Name", exact=True).fill("Nice Bot")
    await page.get_by_role("button", name="Upload", exact=True).click()
    await expect(page.locator(".field-error")).to_contain_text("name")
    await page.get_by_label("Name", exact=True).fill("nice-bot")
    await page.get_by_role("button", name="Upload", exact=True).click()
    await expect(page.get_by_text("It can be called now")).to_be_visible()
    await expect(page.get_by_text("Adapts q_proj in 1 layer ")).to_be_visible()
    assert await watched.violations() == []
    await watched.screenshot("light/upload-done")
    await page.get_by_role("button", name="Open the adapter").click()
    await expect(page.get_by_role("heading", level=1, name="nice-bot")).to_be_visible()

    await page.get_by_role("button", name="New version").click()
    await choose(page, good_adapter(tmp_path / "two", seed=2, rank=4))
    await page.get_by_label("Make it the current version").uncheck()
    await page.get_by_role("button", name="Upload", exact=True).click()
    await expect(page.get_by_text("The version is ready")).to_be_visible()
    await page.keyboard.press("Escape")

    await page.get_by_role("button", name="Compare").click()
    await expect(page.get_by_role("row", name="Rank 2 4")).to_be_visible()
    assert await watched.violations() == []
    await watched.screenshot("light/adapter-compared")
    await page.keyboard.press("Escape")

    await page.get_by_role("button", name="Promote", exact=True).click()
    await expect(page.get_by_role("dialog")).to_contain_text("instead of 1 within a second")
    await confirm(page, "Promote")
    await expect(page.locator(".lead")).to_contain_text("Version 2 answers as tiny:nice-bot")
    await page.get_by_role("button", name="Roll back to v1").click()
    await confirm(page, "Roll back")
    await expect(page.locator(".lead")).to_contain_text("Version 1 answers as tiny:nice-bot")

    await page.get_by_role("link", name="v2").click()
    await expect(page).to_have_url(re.compile("version=2"))
    await expect(page.get_by_role("heading", name="Tried on an engine")).to_be_visible()
    assert await watched.violations() == []
    await watched.screenshot("light/adapter-version")
    await page.get_by_role("button", name="Retire", exact=True).click()
    await confirm(page, "Retire the version", "nice-bot@2")
    await page.get_by_role("button", name="Delete", exact=True).click()
    await confirm(page, "Delete the version", "nice-bot@2")
    await expect(page.get_by_role("link", name="v2")).to_have_count(0)

    await page.get_by_role("button", name="More actions").click()
    await page.get_by_role("menuitem", name="Delete the adapter").click()
    await confirm(page, "Delete the adapter", "nice-bot")
    await expect(page.get_by_role("heading", name="No adapter yet")).to_be_visible()


async def test_an_adapter_is_for_the_base_model_that_was_chosen(
    visit: Visit, browser_house: BrowserHouse, tmp_path: Path
) -> None:
    project = browser_house.projects["umbrella"]
    folder = make_model_folder(tmp_path / "other", context=256)
    body = {"name": "other-base", "model": str(folder), "access": "listed", "grants": [{"project_id": project}]}
    with browser_house.operator() as operator:
        pool = operator.post("/pools", json=body).json()
    async with await Database.connect(browser_house.dsn) as database:
        agent = Agent(database, "host_of_other", "cpu-3")
        await agent.claim()
        await agent.prepare(pool["id"], digest=model_digest(folder), folder=str(folder))
        replica_id = await agent.start(pool["id"])
        watched = await visit()
        page = watched.page
        await watched.open(f"adapters?project={project}")
        await page.get_by_role("button", name="Upload an adapter").first.click()
        await choose(page, good_adapter(tmp_path / "one", seed=21))
        await page.get_by_label("Name", exact=True).fill("for-other")
        field = page.get_by_label("Base model")
        await expect(field.locator("option")).to_have_text([BASE, "other-base"])
        await field.select_option("other-base")
        assert await watched.violations() == []
        await watched.screenshot("light/upload-base", whole=False)
        await page.get_by_role("button", name="Upload", exact=True).click()
        await expect(page.get_by_text("It waits for an engine")).to_be_visible()
        with browser_house.operator() as operator:
            made = operator.get(f"/projects/{project}/adapters/for-other/versions/1").json()
            assert made["model"] == "other-base:for-other@1"
            operator.delete(f"/projects/{project}/adapters/for-other")
            operator.post(f"/pools/{pool['id']}/drain")
            await agent.stop(replica_id)
            assert operator.delete(f"/pools/{pool['id']}").status_code == 200
        await agent.die()


async def test_a_refused_adapter_says_why_and_what_to_do(
    visit: Visit, browser_house: BrowserHouse, tmp_path: Path
) -> None:
    watched = await visit()
    page = watched.page
    watched.expect("400 POST .*/adapter_imports/[^/]+/complete")
    await watched.open(f"adapters?project={browser_house.projects['initech']}")
    folder = write_adapter(tmp_path / "wide", in_features=9, num_layers=2)
    content = {name: list((folder / name).read_bytes()) for name in FILES}
    transfer = await page.evaluate_handle(
        """(files) => {
            const transfer = new DataTransfer();
            for (const [name, bytes] of Object.entries(files)) {
                transfer.items.add(new File([new Uint8Array(bytes)], name));
            }
            return transfer;
        }""",
        content,
    )
    await page.dispatch_event(".page", "dragover", {"dataTransfer": transfer})
    await expect(page.get_by_text("Drop to upload an adapter")).to_be_visible()
    await page.dispatch_event(".page", "drop", {"dataTransfer": transfer})
    await page.get_by_label("Name", exact=True).fill("wide")
    await page.get_by_role("button", name="Upload", exact=True).click()
    refusal = page.get_by_role("dialog").get_by_role("alert")
    await expect(refusal).to_contain_text("The adapter was refused")
    await expect(refusal.locator(".reasons li")).to_have_count(2)
    await expect(refusal).to_contain_text("Train it on the one that is served here")
    assert await watched.violations() == []
    await watched.screenshot("light/upload-refused")
    await page.get_by_role("button", name="Choose other files").click()
    await page.get_by_label("Files of an adapter").set_input_files(
        {"name": "adapter_model.bin", "mimeType": "application/octet-stream", "buffer": b"pickle"}
    )
    await expect(page.get_by_text("safe_serialization=True")).to_be_visible()
    await page.keyboard.press("Escape")
    await page.get_by_role("region", name="Imports").get_by_role("button", name="Why").first.click()
    await expect(page.get_by_role("dialog")).to_contain_text("made for (in, out)")


async def test_an_upload_goes_on_where_it_stopped(visit: Visit, browser_house: BrowserHouse, tmp_path: Path) -> None:
    watched = await visit()
    page = watched.page
    project = browser_house.projects["umbrella"]
    await watched.open(f"adapters?project={project}&add=file")
    folder = good_adapter(tmp_path / "half", seed=5)
    begun = await page.evaluate(
        """async ([project, files]) => {
            const { tar } = await import("/admin/pages/adapters/upload/tar.js");
            const { post, upload } = await import("/admin/lib/api.js");
            const blob = tar(files.map(([name, bytes]) => [name, new Blob([new Uint8Array(bytes)])]));
            const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", await blob.arrayBuffer()));
            const sha256 = [...hash].map((byte) => byte.toString(16).padStart(2, "0")).join("");
            const base = `/projects/${project}/adapter_imports`;
            const row = await post(base, { name: "half", size_bytes: blob.size, promote: true, sha256 });
            const headers = { "upload-offset": "0" };
            return upload(`${base}/${row.id}`, blob.slice(0, 1000), { method: "PATCH", headers });
        }""",
        [project, [[name, list((folder / name).read_bytes())] for name in FILES]],
    )
    assert begun["received_bytes"] == 1000
    await choose(page, folder)
    await page.get_by_label("Name", exact=True).fill("half")
    async with page.expect_request(lambda request: request.method == "PATCH") as sent:
        await page.get_by_role("button", name="Upload", exact=True).click()
    request = await sent.value
    assert (request.url.endswith(begun["id"]), request.headers["upload-offset"]) == (True, "1000")
    await expect(page.get_by_text("It can be called now")).to_be_visible()


RANGES = {
    "Temperature": ("0", "2", "-0.1", "2.1"),
    "Top p": ("0", "1", "-0.1", "1.1"),
    "Top k": ("-1", "2147483647", "-2", "2147483648"),
    "Min p": ("0", "1", "-0.1", "1.1"),
    "Max tokens": ("1", "2147483647", "0", "2147483648"),
    "Presence penalty": ("-2", "2", "-2.1", "2.1"),
    "Frequency penalty": ("-2", "2", "-2.1", "2.1"),
    "Repetition penalty": ("0.001", "2", "0", "2.1"),
}
"""The least and the greatest value that the API allows for each default, with a value below and one above."""


async def test_defaults_are_checked_in_the_ranges_of_the_api(
    visit: Visit, browser_house: BrowserHouse, tmp_path: Path
) -> None:
    """A value out of range is named at its field and not sent; a value in range is sent exactly."""
    add(browser_house, "globex", "bounds", good_adapter(tmp_path / "bounds", seed=8))
    watched = await visit()
    page = watched.page
    await watched.open(f"adapters/{browser_house.projects['globex']}/bounds/settings")

    async def save(place: int) -> None:
        for label, texts in RANGES.items():
            await page.get_by_label(label, exact=True).fill(texts[place])
        await page.get_by_role("button", name="Save defaults").click()

    for place, sentence in ((2, "It is at least"), (3, "It is at most")):
        await save(place)
        await expect(page.locator(".field-error")).to_have_text([re.compile(sentence)] * len(RANGES))
    for place in (0, 1):
        await save(place)
        await expect_message(page, "The defaults are saved")
        await expect(page.locator(".field-error")).to_have_count(0)
    await page.get_by_label("Temperature").fill("0,5")
    await page.get_by_label("Top k").fill("2.5")
    await page.get_by_role("button", name="Save defaults").click()
    await expect(page.locator(".field-error")).to_have_text(["Give a number, such as 0.5.", re.compile("whole number")])


async def test_settings_are_saved_and_aliases_and_shares_made_and_ended(
    visit: Visit, browser_house: BrowserHouse, tmp_path: Path
) -> None:
    add(browser_house, "globex", "haiku", good_adapter(tmp_path / "haiku", seed=7))
    watched = await visit()
    page = watched.page
    where = f"adapters/{browser_house.projects['globex']}/haiku"
    await watched.open(f"{where}/settings")
    await page.get_by_label("Temperature").fill("0.5")
    await page.get_by_label("System prompt").fill("Answer in a haiku.")
    await page.get_by_role("button", name="Save defaults").click()
    await expect(page.get_by_text("The defaults are saved")).to_be_visible()
    await page.get_by_role("button", name="Pin", exact=True).click()
    await confirm(page, "Pin")
    await expect(page.get_by_text("Pinned", exact=True)).to_be_visible()
    with browser_house.operator() as client:
        shown = client.get(f"/projects/{browser_house.projects['globex']}/adapters/haiku").json()
    assert (shown["pinned"], shown["defaults"]) == (True, {"temperature": 0.5, "system_prompt": "Answer in a haiku."})
    assert await watched.violations() == []

    await page.get_by_role("link", name="Aliases and shares").click()
    await page.get_by_role("button", name="New alias").first.click()
    for wrong, sentence in (("", "Give it a name"), ("My Bot", "begins with a letter or digit"), (BASE, "base model")):
        await page.get_by_label("Name", exact=True).fill(wrong)
        await page.get_by_role("button", name="Create", exact=True).click()
        await expect(page.locator(".field-error")).to_contain_text(sentence)
    await page.get_by_label("Name", exact=True).fill("production")
    await page.get_by_role("button", name="Create", exact=True).click()
    await expect(page.get_by_text("production points at version 1")).to_be_visible()
    await page.get_by_role("button", name="Move", exact=True).click()
    await page.get_by_role("dialog").get_by_role("button", name="Move", exact=True).click()
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await page.get_by_role("button", name="Share it with a tenant").click()
    await page.get_by_label("Tenant", exact=True).select_option(label="initech")
    await page.get_by_role("dialog").get_by_role("button", name="Share", exact=True).click()
    await expect(page.get_by_role("region", name="Shares")).to_contain_text("initech")
    assert await watched.violations() == []
    await watched.screenshot("light/adapter-access-filled")
    await page.get_by_role("button", name="End", exact=True).click()
    await confirm(page, "End the share")
    await page.get_by_role("button", name="Delete production").click()
    await expect(page.get_by_role("dialog")).to_contain_text("model not found")
    await confirm(page, "Delete the alias")
    await expect(page.get_by_role("heading", name="No alias points here")).to_be_visible()


async def test_a_source_that_is_not_allowed_is_named_at_its_field(visit: Visit, browser_house: BrowserHouse) -> None:
    watched = await visit()
    page = watched.page
    watched.expect("400 POST .*/adapters")
    await watched.open(f"adapters?project={browser_house.projects['acme']}")
    await page.get_by_role("button", name="Import from a URL").click()
    await page.get_by_label("Source").fill("hf://somebody/some-adapter")
    await page.get_by_label("Name", exact=True).fill("fetched")
    await page.get_by_role("button", name="Import", exact=True).click()
    await expect(page.locator(".field-error")).to_contain_text("source")
    assert await watched.violations() == []


async def test_nothing_is_imported_where_no_source_is_allowed(visit: Visit, browser_house: BrowserHouse) -> None:
    watched = await visit()
    page = watched.page
    await page.route("**/admin/v1/session", no_sources)
    await watched.open(f"adapters?project={browser_house.projects['acme']}&add=source")
    await expect(page.get_by_label("Files of an adapter")).to_have_count(1)
    await expect(page.get_by_role("radio", name="From a URL or the hub")).to_have_count(0)
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("button", name="Upload an adapter").first).to_be_visible()
    await expect(page.get_by_role("button", name="Import from a URL")).to_have_count(0)
    await page.unroute("**/admin/v1/session")


async def no_sources(route: Route) -> None:
    reply = await route.fetch()
    await route.fulfill(response=reply, json={**await reply.json(), "imports_from_sources": False})


async def test_who_may_only_look_is_shown_no_way_to_change(visit: Visit, browser_house: BrowserHouse) -> None:
    acme = browser_house.projects["acme"]
    watched = await visit(VIEWER)
    page = watched.page
    await watched.open("adapters")
    await expect(page.get_by_role("link", name="support-bot")).to_be_visible()
    await expect(page.get_by_role("region", name="Adapters")).to_contain_text("globex")
    assert await buttons(watched, "Upload", "Import") == []
    for view in ("", "/settings", "/access"):
        await watched.open(f"adapters/{acme}/support-bot{view}")
        assert await buttons(watched, "New version", "Promote", "Roll back", "Pin", "Save", "New alias", "Share") == []
    await page.get_by_role("button", name="More actions").click()
    await expect(page.get_by_role("menuitem", name="Copy the model id")).to_be_visible()
    await expect(page.get_by_role("menuitem")).to_have_count(1)
    billing = await visit(BILLING)
    await billing.open("adapters")
    await expect(billing.page.get_by_role("heading", name="Your role does not show this")).to_be_visible()


async def test_a_member_sees_their_own_and_may_not_pin(visit: Visit, browser_house: BrowserHouse) -> None:
    watched = await visit(MEMBER)
    page = watched.page
    watched.expect("404 GET .*/adapters/poet")
    await watched.open("adapters")
    await expect(page.get_by_role("region", name="Adapters")).not_to_contain_text("globex")
    row = page.get_by_role("row").filter(has_text="support-bot")
    await expect(row.get_by_role("link").nth(1)).to_have_text(re.compile("[1-9][0-9]*"))
    await page.get_by_role("link", name="support-bot").click()
    await expect(page.get_by_role("button", name="New version")).to_be_visible()
    await page.get_by_role("link", name="Traffic").click()
    await expect(page.get_by_role("region", name="Traffic by version")).to_contain_text("v1")
    await expect(page.get_by_role("img", name=re.compile("Time to first token, p50: last v1"))).to_be_visible()
    await page.get_by_role("link", name="Settings").click()
    await expect(page.get_by_text("the operator's to give")).to_be_visible()
    assert await buttons(watched, "Pin") == []
    await expect(page.get_by_role("button", name="Save defaults")).to_be_visible()
    await watched.open(f"adapters/{browser_house.projects['globex']}/poet")
    await expect(page.get_by_role("heading", name="There is no adapter of this name")).to_be_visible()


async def buttons(watched: WatchedPage, *beginnings: str) -> list[str]:
    """Return the names of the page's buttons whose name starts with one of these beginnings."""
    await watched.settled()
    names = await watched.page.locator("main button").all_inner_texts()
    return [name for name in names if name.strip().startswith(beginnings)]


async def test_an_upload_shows_how_far_it_is_and_can_be_cancelled(
    visit: Visit, browser_house: BrowserHouse, tmp_path: Path
) -> None:
    watched = await visit()
    page = watched.page
    await page.route("**/adapter_imports/*", wait_for_ever)
    await watched.open(f"adapters?project={browser_house.projects['hooli']}&add=file")
    await choose(page, good_adapter(tmp_path / "slow", seed=9))
    await page.get_by_label("Name", exact=True).fill("slow-bot")
    await page.get_by_role("button", name="Upload", exact=True).click()
    drawer = page.get_by_role("dialog", name="Add an adapter")
    heading = drawer.get_by_role("heading", name="Sending slow-bot")
    parts = (heading, drawer.get_by_role("progressbar", name="Upload"), drawer.get_by_text(re.compile(r" of .*iB")))
    for part in (*parts, drawer.get_by_role("button", name="Cancel")):
        await expect(part).to_be_in_viewport(ratio=1)
    assert await heading.evaluate(SEEN) and await drawer.get_by_role("button", name="Cancel").evaluate(SEEN)
    await watched.screenshot("light/upload-running", whole=False)
    await drawer.get_by_role("button", name="Cancel").click()
    await expect(drawer.get_by_text("What has come is kept for a day")).to_be_visible()
    await page.unroute("**/adapter_imports/*")


async def wait_for_ever(route: Route) -> None:
    """Leave the requests that upload pieces without an answer, and pass on all other requests."""
    if route.request.method != "PATCH":
        await route.continue_()


SEEN = """element => {
    const {left, top, width, height} = element.getBoundingClientRect();
    return element.contains(document.elementFromPoint(left + width / 2, top + height / 2));
}"""
"""A script that returns whether an element is visible at its center, neither covered nor cut off."""
