"""Batches of a tenant: made of a file, watched, downloaded, cancelled."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from playwright.async_api import expect

from tests.browser.acts import dialog, row
from tests.browser.conftest import Visit
from tests.browser.house import MEMBER, VIEWER, BrowserHouse
from tests.gateway.batches.jobs import chat_line, file_of


@pytest_asyncio.fixture(loop_scope="session")
async def tenant(browser_house: BrowserHouse) -> AsyncIterator[str]:
    """Give the id of a project of this test's own, with an API key."""
    with browser_house.operator() as operator:
        made = operator.post("/projects", json={"name": f"batches of {time.monotonic_ns()}"}).json()
        operator.post(f"/projects/{made['id']}/api_keys", json={"name": "labelling", "scopes": ["inference"]})
        yield made["id"]
        operator.post(f"/projects/{made['id']}/archive", json={})


async def test_a_batch_goes_from_its_file_to_its_output(visit: Visit, tenant: str, tmp_path: Path) -> None:
    watched = await visit()
    page = watched.page
    await watched.open(f"tenants/{tenant}/batches")
    await expect(page.get_by_text("No batch yet")).to_be_visible()
    await page.get_by_role("button", name="New batch").first.click()
    form = dialog(page, "New batch")
    await form.get_by_role("button", name="Run the batch").click()
    await expect(form.get_by_text("Choose a file with a request on each line.")).to_be_visible()
    lines = [*(chat_line(f"good-{n}") for n in range(3)), chat_line("hot", temperature=9)]
    (tmp_path / "labels.jsonl").write_bytes(file_of(lines))
    await form.get_by_label("File").set_input_files(tmp_path / "labels.jsonl")
    await form.get_by_role("button", name="Run the batch").click()
    await expect(page.get_by_text("3 of 4 lines were answered")).to_be_visible()
    await expect(row(page, "invalid_value")).to_contain_text("A field has a value that is not allowed")
    async with page.expect_download() as download:
        await page.get_by_role("button", name="Output").click()
    saved = await (await download.value).path()
    text = await asyncio.to_thread(Path(saved).read_text)
    ids = {json.loads(line)["custom_id"] for line in text.splitlines()}
    assert ids == {"good-0", "good-1", "good-2"}
    await watched.open(f"tenants/{tenant}/batches")
    await expect(row(page, "labels.jsonl")).to_contain_text("input of a batch")
    await expect(row(page, "4 of 4")).to_contain_text("completed")


async def test_files_of_one_name_can_be_told_apart(visit: Visit, browser_house: BrowserHouse, tenant: str) -> None:
    with browser_house.operator() as operator:
        made = [
            operator.post(
                f"/projects/{tenant}/files",
                files={"file": ("same.jsonl", file_of([chat_line(str(n)) for n in range(number)]))},
            ).json()
            for number in (1, 1, 1, 40)
        ]
    watched = await visit()
    await watched.open(f"tenants/{tenant}/batches")
    await watched.page.get_by_role("button", name="New batch").first.click()
    options = dialog(watched.page, "New batch").get_by_label("File", exact=True).locator("option")
    await expect(options).to_have_count(1 + len(made))
    texts = (await options.all_inner_texts())[1:]
    assert len(set(texts)) == len(made) and all(text.startswith("same.jsonl, ") for text in texts)
    assert all(re.search(r"\b20\d\d\b", text) for text in texts), "each has its date"
    sizes = {text.split(", ")[1] for text in texts}
    assert len(sizes) == 2


async def test_a_batch_is_cancelled_once_it_is_certain(visit: Visit, browser_house: BrowserHouse, tenant: str) -> None:
    slow = [chat_line(str(n), max_tokens=300, ignore_eos=True) for n in range(60)]
    with browser_house.operator() as operator:
        form = {"file": ("slow.jsonl", file_of(slow))}
        file_id = operator.post(f"/projects/{tenant}/files", files=form).json()["id"]
        key_id = operator.get(f"/projects/{tenant}/api_keys").json()["data"][0]["id"]
        body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "api_key_id": key_id}
        batch = operator.post(f"/projects/{tenant}/batches", json=body).json()
    watched = await visit()
    page = watched.page
    await watched.open(f"tenants/{tenant}/batches/{batch['id']}")
    await expect(page.get_by_text("of 60 lines have a result")).to_be_visible()
    await page.get_by_role("button", name="Cancel the batch").click()
    await dialog(page, "Cancel the batch?").get_by_role("button", name="Cancel the batch").click()
    await expect(row(page, "batch_cancelled")).to_be_visible()
    await expect(page.get_by_role("button", name="Cancel the batch")).to_have_count(0)


async def test_what_a_role_may_not_do_is_not_there(visit: Visit, browser_house: BrowserHouse) -> None:
    acme = browser_house.projects["acme"]
    for email, may in ((VIEWER, False), (MEMBER, True)):
        watched = await visit(email)
        await watched.open(f"tenants/{acme}/batches/{browser_house.batch}")
        await expect(watched.page.get_by_text("of 12,000 lines have a result")).to_be_visible()
        await expect(watched.page.get_by_role("button", name="Cancel the batch")).to_have_count(int(may))
        await watched.open(f"tenants/{acme}/batches")
        await expect(watched.page.get_by_role("heading", name="Files")).to_have_count(int(may))
        await expect(watched.page.get_by_role("button", name="New batch")).to_have_count(int(may))
