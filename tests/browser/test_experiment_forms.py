"""The forms of experiments: wrong fields, parts, what was typed, and changes by two people."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Dialog, expect

from tests.browser.acts import confirm, dialog, expect_message, row
from tests.browser.conftest import Visit
from tests.browser.experiment import make_experiment
from tests.browser.experiment_acts import change_draft, experiment_named, make_draft
from tests.browser.house import BrowserHouse
from tests.gateway.live import BASE


async def test_each_wrong_field_is_named_at_the_field(visit: Visit, browser_house: BrowserHouse) -> None:
    """A field that is empty or wrong is named before anything is sent, and so is a field that the API refuses."""
    hooli = browser_house.projects["hooli"]
    with browser_house.operator() as client:
        metric = {"name": "solved", "type": "boolean", "goal": "increase", "kind": "mean"}
        client.post(f"/projects/{hooli}/feedback_metrics", json=metric).raise_for_status()
    watched = await visit()
    page = watched.page
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url) if request.method == "POST" else None)
    await watched.open(f"experiments/{hooli}/new")
    save = page.get_by_role("button", name="Save as a draft")
    error = page.locator(".field", has=page.locator(".field-error"))
    plan = page.get_by_role("note").filter(has_text="What will happen")
    await expect(plan).to_contain_text("How long it takes is not known: There is too little feedback of the past")
    await page.get_by_label("Name", exact=True).first.fill("f" * 70)
    await page.get_by_label("Name", exact=True).nth(1).fill("c" * 65)
    await page.get_by_label("Part of the units that takes part").fill("12.345")
    await page.get_by_label("Part of the units", exact=True).nth(0).fill("100")
    await page.get_by_label("Part of the units", exact=True).nth(1).fill("0")
    await save.click()
    await expect(error).to_contain_text(
        [
            re.compile("Name.*It has 70 characters, and 64 at most", re.DOTALL),
            re.compile("takes part.*At most two digits", re.DOTALL),
            re.compile("Name.*It has 65 characters, and 64 at most", re.DOTALL),
        ]
    )
    treatment = page.get_by_role("group", name="Treatment")
    await expect(treatment.locator(".field", has_text="At least two arms need a part above 0")).to_contain_text(
        "Part of"
    )
    await expect(page.get_by_role("group", name="Control")).not_to_contain_text("At least two arms")
    await page.get_by_label("Part of the units that takes part").fill("12.35")
    await expect(plan).to_contain_text("87.65 % of the units take no part and get the control")
    await page.get_by_label("Name", exact=True).nth(1).fill("control")
    for place in (0, 1):
        await page.get_by_label("Part of the units", exact=True).nth(place).fill("50")
    await page.get_by_label("Name", exact=True).first.fill("fields")
    await page.get_by_label("Change worth finding, %").fill("")
    await page.get_by_label("A unit's outcomes count for").fill("")
    await page.get_by_label("Days before anything is decided").fill("")
    await page.get_by_text("Statistics, layer and holdout").click()
    await page.get_by_label("False alarms, %").fill("")
    await page.get_by_label("Units that you expect").fill("")
    await page.get_by_label("Tolerated, %").last.fill("a lot")
    await page.get_by_text("Statistics, layer and holdout").click()
    sent.clear()
    await save.click()
    await expect(error).to_contain_text(
        [
            re.compile("Tolerated.*Give a number", re.DOTALL),
            re.compile("Change worth finding.*Give the smallest change", re.DOTALL),
            re.compile("outcomes count for.*Say how long", re.DOTALL),
            re.compile("Days before.*Give a whole number", re.DOTALL),
            re.compile("False alarms.*Say how many", re.DOTALL),
            re.compile("Units that you expect.*Give a whole number", re.DOTALL),
        ]
    )
    await expect(page.get_by_label("False alarms, %")).to_be_visible()
    await watched.screenshot("light/experiment-fields")
    assert [url for url in sent if url.endswith("/experiments")] == []
    await page.get_by_label("Tolerated, %").last.fill("10")
    await page.get_by_label("Change worth finding, %").fill("5")
    await page.get_by_label("False alarms, %").fill("5")
    await page.get_by_label("Units that you expect").fill("500")
    await page.get_by_label("Days before anything is decided").fill("0")
    window = page.get_by_label("A unit's outcomes count for")
    await window.fill("9")
    await page.get_by_label("Counted in").select_option("seconds")
    await expect(error).to_contain_text(["It is at least 10 seconds."])
    await window.fill("300")
    await expect(error).to_have_count(0)

    await page.get_by_label("Model string").fill(BASE)
    await page.get_by_label("Serves").nth(1).select_option(BASE)
    watched.expect("40[09] POST .*/experiments(/preview)?$")  # the metric that the form asks about is gone below
    await save.click()
    await expect(error).to_contain_text([re.compile("Model string.*A base model has the name 'tiny'", re.DOTALL)])
    await expect(page.get_by_label("Model string")).to_be_focused()
    await page.get_by_label("Model string").fill("")
    await expect(error).to_have_count(0)
    with browser_house.operator() as client:
        client.delete(f"/projects/{hooli}/feedback_metrics/solved").raise_for_status()
    await save.click()
    await expect(error).to_contain_text([re.compile("Metric that decides.*There is no metric `solved`", re.DOTALL)])
    await page.get_by_label("Metric that decides").select_option("cost_nanos")
    await save.click()
    await expect_message(page, "The draft fields is saved")
    assert experiment_named(browser_house, "hooli", "fields")["coverage"] == 1_235
    await expect(page.get_by_text("12.35 % of the units", exact=False)).to_be_visible()


async def test_parts_are_shares_of_their_sum_and_tiny_ones_are_shown(visit: Visit, browser_house: BrowserHouse) -> None:
    watched = await visit()
    page = watched.page
    await watched.open(f"experiments/{browser_house.projects['initech']}/new")
    part = page.get_by_label("Part of the units", exact=True)
    control, treatment = page.get_by_role("group", name="Control"), page.get_by_role("group", name="Treatment")
    await expect(page.get_by_text("The parts add up to 100: they are percents")).to_be_visible()
    await part.nth(0).fill("99.6")
    await part.nth(1).fill("0.4")
    await expect(treatment).to_contain_text("gets 0.4 % of the units")
    await expect(control).to_contain_text("gets 99.6 % of the units")
    await part.nth(0).fill("99.99")
    await part.nth(1).fill("0.01")
    await expect(control).to_contain_text("gets 99.99 % of the units")
    await part.nth(0).fill("50")
    await part.nth(1).fill("100")
    await expect(page.get_by_text("The parts add up to 150, not 100: each arm gets its share")).to_be_visible()
    await expect(control).to_contain_text("gets 33.3 % of the units")
    plan = page.get_by_role("note").filter(has_text="What will happen")
    await expect(plan).to_contain_text("control, 33.3 %")
    await page.get_by_label("Name", exact=True).first.fill("parts")
    await page.get_by_label("Metric that decides").select_option("cost_nanos")
    await page.get_by_role("button", name="Save as a draft").click()
    await expect_message(page, "The draft parts is saved")
    shares = [arm["share"] for arm in experiment_named(browser_house, "initech", "parts")["arms"]]
    assert shares == [1 / 3, 2 / 3]
    await expect(row(page, "control")).to_contain_text("33.3 %")


@pytest.mark.parametrize("hears", [True, False])
async def test_two_people_change_one_draft_and_neither_change_is_lost(
    visit: Visit, browser_house: BrowserHouse, hears: bool
) -> None:
    """The form learns of the other person's change before its own is sent (`hears`), or from the refusal."""
    name = f"shared-{hears}".lower()
    path = await make_draft(browser_house, "umbrella", name)
    watched = await visit()
    page = watched.page
    await watched.open(f"experiments/{path.split('/')[2]}/{path.rsplit('/', 1)[1]}/edit")
    conflict = page.get_by_role("alert").filter(has_text="Somebody else changed this draft")
    save = page.get_by_role("button", name="Save the draft")
    if not hears:
        await page.get_by_role("button", name="Live").click()
        await expect(page.get_by_role("button", name="Paused")).to_be_visible()
    await page.get_by_label("Part of the units that takes part").fill("40")
    await page.get_by_label("Days before anything is decided").fill("3")
    other = {"analysis": {"min_days": 14, "outcome_window_seconds": 86_400, "tightest_at": 700, "alpha": 0.05}}
    change_draft(browser_house, path, **other)
    if not hears:
        watched.expect("409 POST .*/experiments/")
        await save.click()
    await expect(conflict).to_contain_text("Version 2 was saved while you filled in version 1")
    await expect(page.get_by_label("Days before anything is decided")).to_have_value("3")
    await save.click()
    load = conflict.get_by_role("button", name="Load it and keep what I typed")
    await expect(load).to_be_focused()
    assert experiment_named(browser_house, "umbrella", name)["version"] == 2, "nothing was saved over the other change"
    assert await watched.violations() == []
    await load.click()
    await expect(conflict).to_have_count(0)
    loaded = page.get_by_role("note").filter(has_text="Version 2 is loaded, with what you typed")
    await expect(loaded).to_contain_text("Both changed the days before a decision")
    await expect(page.get_by_label("Part of the units that takes part")).to_have_value("40")
    await expect(page.get_by_label("A unit's outcomes count for")).to_have_value("1")
    await save.click()
    await expect_message(page, f"{name} is changed")
    saved = experiment_named(browser_house, "umbrella", name)
    assert (saved["version"], saved["coverage"], saved["analysis"]["min_days"]) == (3, 4_000, 3)
    assert (saved["analysis"]["outcome_window_seconds"], saved["analysis"]["tightest_at"]) == (86_400, 700)
    assert [arm["share"] for arm in saved["arms"]] == [1 / 3, 2 / 3], "weights without whole percents stay as they were"


async def test_what_was_typed_outlives_a_reload_and_leaving_asks_first(
    visit: Visit, browser_house: BrowserHouse
) -> None:
    path = await make_draft(browser_house, "initech", "unsent")
    project, id = path.split("/")[2], path.rsplit("/", 1)[1]
    watched = await visit()
    page = watched.page
    await watched.open(f"experiments/{project}/{id}")
    await page.get_by_role("link", name="Change it").click()
    coverage = page.get_by_label("Part of the units that takes part")
    await coverage.fill("60")
    await page.get_by_role("link", name="Tenants", exact=True).first.click()
    await expect(dialog(page, "Leave without saving?")).to_contain_text("there again when you come back")
    await page.keyboard.press("Escape")
    await page.evaluate("history.back()")
    await expect(dialog(page, "Leave without saving?")).to_be_visible()
    await dialog(page, "Leave without saving?").get_by_role("button", name="Cancel").click()
    await expect(coverage).to_have_value("60")
    asked: list[str] = []

    async def answer(question: Dialog) -> None:
        asked.append(question.type)
        await question.accept()

    page.on("dialog", answer)
    await page.reload()
    await watched.settled()
    assert asked == ["beforeunload"], "closing the tab asks as well"
    await expect(coverage).to_have_value("60")
    await expect(page.get_by_role("note").filter(has_text="What you typed here is back")).to_be_visible()
    await page.get_by_role("link", name="Tenants", exact=True).first.click()
    await confirm(page, "Leave without saving?", "Leave")
    await expect(page.get_by_role("heading", level=1, name="Tenants")).to_be_visible()
    await watched.turn_to(f"experiments/{project}/{id}/edit")
    await expect(coverage).to_have_value("60")
    await page.get_by_role("button", name="Start over").click()
    await expect(coverage).to_have_value("100")
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.get_by_role("heading", level=1, name="unsent")).to_be_visible()
    assert await page.evaluate("sessionStorage.getItem('lorikeet.experiment-forms')") is None


async def test_a_change_of_what_somebody_changed_meanwhile_is_refused(
    visit: Visit, browser_house: BrowserHouse
) -> None:
    initech = browser_house.projects["initech"]
    with browser_house.operator() as client:
        id = make_experiment(client, initech, name="weighed", arms=(BASE, f"{BASE}:tps-reports"), layer="weighed")
    path = f"/projects/{initech}/experiments/{id}"
    watched = await visit()
    page = watched.page
    await watched.open(f"experiments/{initech}/{id}/setup")
    await page.get_by_role("button", name="Change weights").click()
    form = dialog(page, "Change weights")
    arms = experiment_named(browser_house, "initech", "weighed")["arms"]
    moved = [{"name": arm["name"], "weight": place + 1, "target": arm["target"]} for place, arm in enumerate(arms)]
    change_draft(browser_house, path, arms=moved)
    await expect(page.get_by_text("Version 2, as the API")).to_be_visible()
    watched.expect("409 POST .*/experiments/")
    await form.get_by_role("button", name="Change").click()
    await expect(form.get_by_role("alert")).to_contain_text("Somebody else changed the experiment while this was open")
    assert experiment_named(browser_house, "initech", "weighed")["version"] == 2
