"""Steps of tests of experiments: requests to the API, drafts, and the menu of the page."""

from __future__ import annotations

import re
from typing import Any

import httpx
from playwright.async_api import Page

from tests.browser.house import BrowserHouse
from tests.gateway.live import BASE
from tests.patience import PATIENCE_S


def experiment_named(house: BrowserHouse, project: str, name: str) -> dict[str, Any]:
    with house.operator() as operator:
        listed = operator.get(f"/projects/{house.projects[project]}/experiments").json()["data"]
    (found,) = [each for each in listed if each["name"] == name]
    return dict(found)


async def ask_for_units(house: BrowserHouse, project: str, model: str, units: int) -> set[str]:
    """Send one request for each of `units` units; return the arms that the replies name."""
    async with httpx.AsyncClient(base_url=house.url, timeout=PATIENCE_S) as client:
        arms = set()
        for number in range(units):
            body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
            reply = await client.post(
                "/v1/chat/completions",
                json=body | {"user": f"user-{number}"},
                headers={"authorization": f"Bearer {house.keys[project]}"},
            )
            assert reply.status_code == 200, reply.text
            found = re.search('arm="([^"]+)"', reply.headers["x-lorikeet-experiment"])
            assert found is not None
            arms.add(found[1])
    return arms


async def act(page: Page, name: str) -> None:
    """Choose an item from the menu "More actions" of an experiment's page."""
    await page.get_by_role("button", name="More actions").click()
    await page.get_by_role("menuitem", name=name).click()


async def make_draft(house: BrowserHouse, project: str, name: str) -> str:
    """Make a draft over HTTP whose arms have the weights 1 and 2; return its path below the project."""
    path = f"/projects/{house.projects[project]}/experiments"
    arms = [
        {"name": each, "weight": weight, "target": {"model": BASE}} for each, weight in (("control", 1), ("other", 2))
    ]
    metrics = {"primary": [{"metric": "cost_nanos", "goal": "decrease"}]}
    definition = {"name": name, "model": name, "unit": {"from": "user"}, "arms": arms, "metrics": metrics}
    with house.operator() as operator:
        made = operator.post(path, json=definition)
        assert made.status_code == 200, made.text
    return f"{path}/{made.json()['id']}"


def two_arms(*models: str) -> list[dict[str, Any]]:
    """Return the arms of a definition, the control first, for one model each."""
    names = ("control", "other")
    return [{"name": name, "weight": 1, "target": {"model": model}} for name, model in zip(names, models, strict=True)]


def change_draft(house: BrowserHouse, path: str, **changes: Any) -> None:
    with house.operator() as operator:
        operator.post(path, json=changes).raise_for_status()
