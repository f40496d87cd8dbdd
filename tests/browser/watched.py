"""A watched page of a browser: what its console prints, what the Content-Security-Policy blocks, which requests fail.

A test ends with an error where something went wrong that it did not expect.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from axe_playwright_python.base import AXE_SCRIPT
from playwright.async_api import ConsoleMessage, Page, Response, expect

REPOSITORY = Path(__file__).parent.parent.parent
SCREENSHOTS = REPOSITORY / "build" / "screenshots"
SERIOUS = ("serious", "critical")
WATCH_POLICY = """
    window.violations = [];
    document.addEventListener("securitypolicyviolation",
        (event) => window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}`));
"""
WAITING = ".skeleton, .skeleton-space, [aria-busy=true]"
FOLLOW = "path => { history.pushState({}, '', path); window.dispatchEvent(new PopStateEvent('popstate')); }"
EMPTY = """async () => {
    const [data, session] = await Promise.all([import("/admin/lib/data.js"), import("/admin/lib/session.js")]);
    for (const state of ["out", "loading"]) session.session$.set({ state, who: null });
    data.forgetAll();
    const app = document.getElementById("app");
    while (app.childElementCount) await new Promise(requestAnimationFrame);
}"""
"""A script that resets the dashboard to its state before the first reply, without content and without cached data."""
BEGIN = """async path => {
    history.pushState({}, "", path);
    window.dispatchEvent(new PopStateEvent("popstate"));
    await (await import("/admin/lib/session.js")).readSession();
}"""
FAILED_LOAD = re.compile(r"Failed to load resource: the server responded with a status of (\d+)")


class WatchedPage:
    """A page and its failures.

    expected: patterns of "STATUS METHOD PATH", or of messages of the console, that a test causes.
    loads: whether each `open` loads the dashboard's files again.
    """

    def __init__(self, page: Page, url: str, *, takes_pictures: bool = False, loads: bool = True) -> None:
        self.page = page
        self.url = url
        self.takes_pictures = takes_pictures
        self.loads = loads
        self.expected: list[re.Pattern[str]] = []
        self._wrong: list[str] = []
        self._handlers: dict[str, Callable[[Any], None]] = {
            "console": self._on_console,
            "pageerror": lambda error: self._wrong.append(f"error: {error}"),
            "response": self._on_response,
        }
        for event, handler in self._handlers.items():
            page.on(event, handler)  # type: ignore[call-overload]

    def expect(self, pattern: str) -> None:
        """Expect failures that match a pattern, for example "401 POST /admin/v1/login"."""
        self.expected.append(re.compile(pattern))

    async def open(self, path: str) -> None:
        """Open a path of the dashboard, and return once the page has settled.

        A page that has loaded the dashboard before is emptied and reused, since loading takes most of the time.
        """
        path = f"/admin/{path.lstrip('/')}"
        if self.loads or not self._is_loaded():
            await self.page.goto(f"{self.url}{path}")
        else:
            await self.page.evaluate(EMPTY)
            await self.page.evaluate(BEGIN, path)
        await self.settled()

    def _is_loaded(self) -> bool:
        return self.page.url.startswith(f"{self.url}/admin/")

    async def leave(self) -> bool:
        """Stop watching, and make the page ready for another test. Return False where the page can't be used again."""
        for event, handler in self._handlers.items():
            self.page.remove_listener(event, handler)
        if self.loads or self.page.is_closed() or not self._is_loaded():
            return False
        await self.page.unroute_all()
        await self.page.mouse.move(0, 0)
        await self.page.evaluate(EMPTY)
        await self.page.evaluate("window.violations = []")
        return True

    async def turn_to(self, path: str) -> None:
        """Navigate to a path without loading the dashboard again, as a link of the page does."""
        await self.page.evaluate(FOLLOW, f"/admin/{path.lstrip('/')}")
        await self.settled()

    async def settled(self) -> None:
        """Wait until everything that the page requested is shown, with no placeholder left."""
        # Not wait_for_function, whose text the Content-Security-Policy lets nobody evaluate.
        await self.page.locator(".page, .signin, .alone").first.wait_for()
        await expect(self.page.locator(WAITING)).to_have_count(0)

    async def press_keys(self, keys: str) -> None:
        """Press the keys of a shortcut such as "g t"."""
        for key in keys.split():
            await self.page.keyboard.press(key)

    async def screenshot(self, name: str, *, whole: bool = True) -> None:
        """Save the page as build/screenshots/NAME.png; do nothing where no pictures are taken.

        whole: take the whole length of the page rather than what a screen shows.
        """
        if not self.takes_pictures:
            return
        size = self.page.viewport_size
        assert size is not None
        height: int = 0 if not whole else await self.page.evaluate("document.documentElement.scrollHeight")
        await self.page.set_viewport_size({"width": size["width"], "height": max(size["height"], height)})
        path = SCREENSHOTS / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        await self.page.screenshot(path=path, animations="disabled")
        await self.page.set_viewport_size(size)

    async def violations(self, *, contrast: bool = True) -> list[str]:
        """Return the serious and critical violations that axe finds in the page, in words.

        contrast: check the contrast of every text as well, which takes twice as long as all other rules together.
        """
        if not await self.page.evaluate("typeof window.axe === 'object'"):
            await self.page.evaluate(AXE_SCRIPT)
        options = {"resultTypes": ["violations"], "rules": {"color-contrast": {"enabled": contrast}}, "preload": False}
        found: dict[str, Any] = await self.page.evaluate("options => axe.run(options)", options)
        return [
            f"{violation['id']}: {node['html'][:160]} ({node.get('failureSummary', '').splitlines()[-1:]})"
            for violation in found["violations"]
            if violation["impact"] in SERIOUS
            for node in violation["nodes"][:5]
        ]

    async def unexpected_failures(self) -> list[str]:
        """Return all failures that the test did not expect, in words."""
        stopped = [] if self.page.is_closed() else await self.page.evaluate("window.violations ?? []")
        return [*self._wrong, *(f"policy: {text}" for text in stopped)]

    def _on_console(self, message: ConsoleMessage) -> None:
        is_told = message.type in ("error", "warning") and FAILED_LOAD.match(message.text) is None
        if is_told and not self._is_expected(message.text):
            self._wrong.append(f"console: {message.text}")

    def _on_response(self, response: Response) -> None:
        if response.status < 400:
            return
        what = f"{response.status} {response.request.method} {response.url.removeprefix(self.url)}"
        if not self._is_expected(what):
            self._wrong.append(what)

    def _is_expected(self, what: str) -> bool:
        return any(pattern.search(what) for pattern in self.expected)
