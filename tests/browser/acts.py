"""What people do on many pages: rows and their menus, dialogs, questions to be answered, what is told afterwards."""

from __future__ import annotations

from playwright.async_api import Locator, Page, expect


def row(page: Page, text: str) -> Locator:
    """Of a table, by something that it shows."""
    return page.locator("tbody tr").filter(has_text=text)


def dialog(page: Page, name: str) -> Locator:
    return page.get_by_role("dialog", name=name)


async def choose(page: Page, name: str, item: str) -> None:
    """An item of the menu "Actions on NAME"."""
    await page.get_by_role("button", name=f"Actions on {name}").click()
    await page.get_by_role("menuitem", name=item).click()


async def confirm(page: Page, title: str, verb: str, *, typed: str | None = None) -> None:
    """Answer the question; typed: the name that it wants before its button does anything."""
    asked = dialog(page, title)
    button = asked.get_by_role("button", name=verb)
    if typed is not None:
        await expect(button).to_be_disabled()
        await asked.get_by_label("Type").fill(typed)
    await button.click()
    await expect(asked).to_have_count(0)


async def told(page: Page, text: str) -> None:
    """It says so, and the message is put away."""
    toast = page.locator(".toast").filter(has_text=text)
    await expect(toast).to_be_visible()
    await toast.get_by_role("button", name="Dismiss").click()


async def secret_of(shown: Locator, label: str) -> str:
    """What a dialog shows once: masked at first."""
    box = shown.get_by_role("group", name=label)
    assert "•" in await box.locator("code").inner_text()
    await box.get_by_role("button", name="Show").click()
    return await box.locator("code").inner_text()
