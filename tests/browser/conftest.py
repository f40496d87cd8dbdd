"""One gateway, one database and one Chromium for all tests in a browser; each test has pages and logins of its own."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Literal

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

from tests.browser.house import OWNER, PASSWORD, BrowserHouse, open_house
from tests.browser.install import find_chromium
from tests.browser.watched import WATCH_POLICY, WatchedPage
from tests.installation.databases import Databases
from tests.patience import PATIENCE_S

Mode = Literal["light", "dark", "phone"]
SIZES = {"light": (1360, 860), "dark": (1360, 860), "phone": (375, 812)}
PAGE_PATIENCE_MS = 60_000
expect.set_options(timeout=PAGE_PATIENCE_MS)

Visit = Callable[..., Awaitable[WatchedPage]]
"""A function `visit(email or None, mode="light")` that opens a page, signed in as this person, or not signed in."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all browser tests in one event loop, since the browser is bound to its loop."""
    for item in items:
        if "browser" in item.path.parts and isinstance(item, pytest.Function) and asyncio.iscoroutinefunction(item.obj):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture(scope="package")
def browser_house(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowserHouse]:
    with open_house(databases.create("browser"), tmp_path_factory.mktemp("browser")) as house:
        yield house


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def chromium(browser_house: BrowserHouse) -> AsyncIterator[Browser]:
    path = find_chromium()
    assert path is not None, "no Chromium here: python -m tests.browser.install"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        await browser.close()


@pytest.fixture(scope="package")
def cookies() -> dict[str, dict[str, Any]]:
    """Return login cookies by email, kept for all tests since checking a password is slow."""
    return {}


@pytest.fixture(scope="package")
def contexts() -> dict[tuple[str, Mode], BrowserContext]:
    """Return browser contexts by email and mode, kept for all tests so that later tests find files in the browser's
    cache."""
    return {}


@pytest.fixture(scope="package")
def idle() -> dict[BrowserContext, list[Page]]:
    """Return the idle pages of each context: pages that a test has left, emptied, with the dashboard loaded."""
    return defaultdict(list)


@pytest_asyncio.fixture(loop_scope="session")
async def visit(
    chromium: Browser,
    browser_house: BrowserHouse,
    cookies: dict[str, dict[str, Any]],
    contexts: dict[tuple[str, Mode], BrowserContext],
    idle: dict[BrowserContext, list[Page]],
    full: bool,
) -> AsyncIterator[Visit]:
    opened: list[WatchedPage] = []

    async def context_of(email: str | None, mode: Mode) -> BrowserContext:
        if email is None:
            return await new_context(chromium, mode)
        if (email, mode) not in contexts:
            if email not in cookies:
                cookies[email] = await sign_in(browser_house.url, email)
            contexts[email, mode] = await new_context(chromium, mode)
            await contexts[email, mode].add_cookies([cookies[email]])  # type: ignore[list-item]
        return contexts[email, mode]

    async def visit(email: str | None = OWNER, mode: Mode = "light") -> WatchedPage:
        context = await context_of(email, mode)
        shown = idle[context].pop() if idle[context] else await context.new_page()
        page = WatchedPage(shown, browser_house.url, takes_pictures=full, loads=email != OWNER)
        page.page.set_default_timeout(PAGE_PATIENCE_MS)
        opened.append(page)
        return page

    yield visit
    wrong = [text for page in opened for text in await page.unexpected_failures()]
    for page in opened:
        if not wrong and await page.leave():
            idle[page.page.context].append(page.page)
        else:
            await page.page.close()
        if page.page.context not in contexts.values():
            await page.page.context.close()
    assert wrong == []


async def new_context(chromium: Browser, mode: Mode) -> BrowserContext:
    width, height = SIZES[mode]
    context = await chromium.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if mode == "dark" else "light",
        locale="en-GB",
        timezone_id="Europe/Berlin",
        reduced_motion="reduce",
        has_touch=mode == "phone",
    )
    await context.add_init_script(WATCH_POLICY)
    return context


async def sign_in(url: str, email: str, password: str = PASSWORD) -> dict[str, Any]:
    """Sign in over HTTP; return the login's cookie as Playwright takes cookies."""
    async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
        reply = await client.post(
            f"{url}/admin/v1/login", json={"email": email, "password": password}, timeout=PATIENCE_S
        )
    assert reply.status_code == 200, reply.text
    name, value = "lorikeet_login", reply.cookies["lorikeet_login"]
    return {"name": name, "value": value, "url": url, "httpOnly": True, "sameSite": "Strict"}
