"""Every view shows something, breaks no rule, and axe finds nothing serious in it.

All views are opened in light mode; one of each kind in dark mode and on a phone as well. Contrast is checked for one
view of each kind in both colors. With --full all views are opened in all modes, contrast is checked for all, and
pictures are taken.
"""

from __future__ import annotations

import pytest

from tests.browser.conftest import Mode, Visit
from tests.browser.house import BrowserHouse
from tests.browser.views import OF_THE_GUIDE, ONE_OF_EACH_KIND, VIEWS

LOOK = """() => ({
    headings: document.querySelectorAll("h1").length,
    title: document.title,
    overflow: document.documentElement.scrollWidth - window.innerWidth,
})"""


@pytest.mark.parametrize("mode", ["light", "dark", "phone"])
async def test_every_view_has_a_heading_a_title_and_no_violation(
    visit: Visit, browser_house: BrowserHouse, mode: Mode, full: bool
) -> None:
    page = await visit(mode=mode)
    await page.open("account")
    found = {}
    for name in VIEWS if full or mode == "light" else ONE_OF_EACH_KIND:
        await page.turn_to(VIEWS[name].format(**browser_house.places))
        look = await page.page.evaluate(LOOK)
        assert look["headings"] == 1, name
        assert look["title"] != "Lorikeet", name
        overflow = look["overflow"]
        contrast = full or (name in ONE_OF_EACH_KIND and mode != "phone")
        found[name] = [
            *await page.violations(contrast=contrast),
            *([f"{overflow} pixels too wide"] if overflow > 0 else []),
        ]
        await page.screenshot(f"{mode}/{name}")
        if (mode, name) in OF_THE_GUIDE:
            await page.screenshot(f"guide/{mode}-{name}", whole=False)
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize("mode", ["light", "dark", "phone"])
async def test_the_sign_in_page_has_no_violation(visit: Visit, mode: Mode) -> None:
    page = await visit(None, mode=mode)
    await page.open("")
    await page.page.wait_for_url("**/admin/signin")
    assert await page.violations() == []
    await page.screenshot(f"{mode}/signin")
