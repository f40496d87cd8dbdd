"""The dashboard over a whole installation: the first person signs in with what `serve` wrote and sees the engine."""

from __future__ import annotations

from playwright.async_api import async_playwright, expect

from gateway.serve.bootstrap import read_env_file
from tests.browser.install import find_chromium
from tests.browser.watched import WATCH_POLICY, WatchedPage
from tests.e2e.installation import BASE, Installation


async def test_the_first_person_signs_in_and_sees_what_runs(installation: Installation) -> None:
    login = read_env_file(installation.data_dir / "admin-login.txt")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        context = await browser.new_context(reduced_motion="reduce")
        await context.add_init_script(WATCH_POLICY)
        page = WatchedPage(await context.new_page(), installation.url)
        await page.page.goto(installation.url)
        await page.page.wait_for_url("**/admin/signin")
        await page.page.get_by_label("E-mail").fill(login["email"])
        await page.page.get_by_label("Password").fill(login["password"])
        await page.page.keyboard.press("Enter")
        await page.page.wait_for_url("**/admin/")
        engine = page.page.locator(".engine")
        await expect(engine).to_contain_text(BASE)
        await expect(engine).to_contain_text("ready")
        await page.press_keys("g s")
        await expect(page.page.get_by_role("table", name="Gateways")).to_be_visible()
        assert await page.violations() == []
        assert await page.unexpected_failures() == []
        await browser.close()
