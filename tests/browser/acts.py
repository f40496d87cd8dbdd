"""Actions that tests take on many pages: rows and their menus, dialogs, questions, messages, secrets shown once."""

from __future__ import annotations

from playwright.async_api import Locator, Page, expect


def row(page: Page, text: str) -> Locator:
    """Return the table row that shows a text."""
    return page.locator("tbody tr").filter(has_text=text)


def dialog(page: Page, name: str) -> Locator:
    return page.get_by_role("dialog", name=name)


async def choose(page: Page, name: str, item: str) -> None:
    """Choose an item of the menu "Actions on NAME"."""
    await page.get_by_role("button", name=f"Actions on {name}").click()
    await page.get_by_role("menuitem", name=item).click()


async def confirm(page: Page, title: str, verb: str, *, typed: str | None = None) -> None:
    """Answer the question of a dialog and wait until the dialog is gone.

    typed: the name to type before the dialog's button is enabled; None where no name is wanted.
    """
    asked = dialog(page, title)
    button = asked.get_by_role("button", name=verb)
    if typed is not None:
        await expect(button).to_be_disabled()
        await asked.get_by_label("Type").fill(typed)
    await button.click()
    await expect(asked).to_have_count(0)


async def expect_message(page: Page, text: str) -> None:
    """Wait for a message with this text on the page, and dismiss it."""
    toast = page.locator(".toast").filter(has_text=text)
    await expect(toast).to_be_visible()
    await toast.get_by_role("button", name="Dismiss").click()


async def secret_of(shown: Locator, label: str) -> str:
    """Return the secret that a dialog shows once.

    Raises AssertionError: when the secret is not masked at first.
    """
    box = shown.get_by_role("group", name=label)
    assert "•" in await box.locator("code").inner_text()
    await box.get_by_role("button", name="Show").click()
    return await box.locator("code").inner_text()
