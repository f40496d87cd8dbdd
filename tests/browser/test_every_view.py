"""Every view in light, dark and on a phone: it shows something, breaks no rule, and axe finds nothing serious in it."""

from __future__ import annotations

import pytest

from tests.browser.conftest import Mode, Visit
from tests.browser.house import BrowserHouse
from tests.browser.views import VIEWS


@pytest.mark.parametrize("mode", ["light", "dark", "phone"])
async def test_every_view_is_well(visit: Visit, browser_house: BrowserHouse, mode: Mode) -> None:
    page = await visit(mode=mode)
    await page.open("account")
    found = {}
    for name, path in VIEWS.items():
        await page.turn_to(path.format(**browser_house.projects))
        assert await page.page.locator("h1").count() == 1, name
        assert await page.page.title() != "Lorikeet", name
        overflow = await page.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        found[name] = [*await page.violations(), *([f"{overflow} pixels too wide"] if overflow > 0 else [])]
        await page.screenshot(f"{mode}/{name}")
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize("mode", ["light", "dark", "phone"])
async def test_signing_in_is_well(visit: Visit, mode: Mode) -> None:
    page = await visit(None, mode=mode)
    await page.open("")
    await page.page.wait_for_url("**/admin/signin")
    assert await page.violations() == []
    await page.screenshot(f"{mode}/signin")
