"""Experiments: made in a form that tells how long they take, started, watched, changed, stopped and decided."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from playwright.async_api import Dialog, Page, expect

from gateway.db.pool import Database
from tests.browser.acts import confirm, dialog, expect_message, row
from tests.browser.conftest import Visit
from tests.browser.experiment import METRIC, NAME, make_experiment, write_errors, write_first_minutes
from tests.browser.house import MEMBER, VIEWER, BrowserHouse
from tests.gateway.live import BASE
from tests.patience import PATIENCE_S

UNITS = 12
RECORD_LABELS = """
    window.labels = [];
    const { fillText } = CanvasRenderingContext2D.prototype;
    CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
        window.labels.push(text);
        return fillText.call(this, text, ...rest);
    };
"""
"""A script that records the texts drawn on canvases, such as the labels of axes."""
DRAWN_IN_TIMES = """async () => {
    const isTime = (text) => text.endsWith(" ms") || text.endsWith(" s");
    for (let frame = 0; frame < 600 && !window.labels.some(isTime); frame++) await new Promise(requestAnimationFrame);
    return window.labels.some(isTime);
}"""
"""A script that waits until the axis of a chart has labels that are times."""
TIME = re.compile(r"\d\d:\d\d")


def experiment_named(house: BrowserHouse, project: str, name: str) -> dict[str, Any]:
    with house.operator() as operator:
        listed = operator.get(f"/projects/{house.projects[project]}/experiments").json()["data"]
    (found,) = [each for each in listed if each["name"] == name]
    return dict(found)


async def ask(house: BrowserHouse, project: str, model: str, units: int) -> set[str]:
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


SETTINGS = " with temperature 0.2, the system prompt “Be warm.”, whatever a request gives"


async def act(page: Page, name: str) -> None:
    """Choose an item of the experiment's menu "More actions"."""
    await page.get_by_role("button", name="More actions").click()
    await page.get_by_role("menuitem", name=name).click()


async def test_an_experiment_lives_from_its_form_to_its_decision(visit: Visit, browser_house: BrowserHouse) -> None:
    watched = await visit()
    page = watched.page
    lead = page.locator(".lead")
    await watched.open(f"experiments?project={browser_house.projects['globex']}")
    await expect(page.get_by_role("heading", name="No experiment yet")).to_be_visible()
    await page.get_by_role("link", name="New experiment").first.click()
    await page.get_by_role("button", name="Save as a draft").click()
    await expect(page.locator(".field-error")).to_have_text(
        [re.compile("Give it a name"), re.compile("Choose the metric")]
    )
    await page.get_by_label("Name", exact=True).first.fill("verse")
    await page.get_by_label("Who keeps an arm").select_option("user")
    await page.get_by_label("Metric that decides").select_option("cost_nanos")
    serves = page.get_by_label("Serves")
    await serves.nth(0).select_option(f"{BASE}:poet")
    await serves.nth(1).select_option(f"{BASE}:sql-writer")
    plan = page.get_by_role("note").filter(has_text="What will happen")
    await expect(plan).to_contain_text("requests for “verse” get one of the arms (control, 50 %: tiny:poet; treatment")
    await expect(plan.locator(".plan-size")).to_contain_text("days")
    await expect(plan.locator(".plan-size")).to_contain_text("each counted as one unit")
    control = page.get_by_role("group", name="Control")
    await control.get_by_text("Its own settings").click()
    await control.get_by_label("Temperature").fill("0.2")
    await control.get_by_label("System prompt").fill("Be warm.")
    await control.get_by_label("They count for").select_option("replace")
    await expect(plan).to_contain_text(f"control, 50 %: tiny:poet{SETTINGS}; treatment")
    await expect(plan.locator(".plan-size")).to_contain_text("before 7 whole days since the start are over")
    await expect(plan).to_contain_text("The first results come 7 days after the first unit's first request")
    await expect(plan.locator(".plan-shadow")).to_have_count(0)
    await page.get_by_role("button", name="Save as a draft").click()
    await expect_message(page, "The draft verse is saved")
    await expect(page.get_by_role("heading", name="This is a draft")).to_be_visible()

    await page.get_by_role("link", name="Change it").click()
    await page.get_by_label("Days before anything is decided").fill("0")
    await page.get_by_label("Copies go to").select_option(BASE)
    await page.get_by_label("Name of the shadow arm").fill("control")
    await page.get_by_role("button", name="Save the draft").click()
    await expect(page.locator(".field-error")).to_have_text("An arm has this name.")
    await page.get_by_label("Name of the shadow arm").fill("dark")
    copies = (
        "Copies of 100 % of the requests go to “dark” (tiny) once their replies are over. No end user sees anything"
    )
    await expect(plan.locator(".plan-shadow")).to_contain_text(copies)
    await expect(plan.locator(".plan-shadow")).to_contain_text("each copy is billed to this tenant")
    await expect(plan).not_to_contain_text("Nothing is to be decided")
    await page.get_by_role("button", name="Save the draft").click()
    await expect_message(page, "verse is changed")
    await page.get_by_role("button", name="Start").first.click()
    asked = dialog(page, "Start verse?")
    await expect(asked).to_contain_text("From now on requests for verse are answered by one of these")
    await expect(asked.get_by_role("listitem")).to_have_text(
        [f"control, 50 %: tiny:poet{SETTINGS}", "treatment, 50 %: tiny:sql-writer"]
    )
    await expect(asked).to_contain_text(copies)
    await expect(asked).to_contain_text("The first results come 7 days after the first unit's first request")
    assert await watched.violations() == []
    await watched.screenshot("light/experiment-start")
    await confirm(page, "Start verse?", "Start")
    await expect_message(page, "verse runs")
    await expect(lead).to_contain_text("running")

    assert await ask(browser_house, "globex", "verse", UNITS) == {"control", "treatment"}
    await expect(lead).to_contain_text(f"{UNITS} units")
    await expect(row(page, "tiny:sql-writer@1")).to_contain_text(re.compile("[1-9]"))
    await expect(page.get_by_role("region", name="Guardrails")).to_contain_text("Units with an error")

    shadow = page.get_by_role("region", name="Shadow")
    await expect(shadow).to_contain_text("dark shadow")
    await page.get_by_role("link", name="Set-up").click()
    await expect(row(page, "dark shadow")).to_contain_text("of requests, copied")
    await page.get_by_role("button", name="Change the shadow's share").click()
    form = dialog(page, "Change the shadow's share")
    await form.get_by_label("Part of the requests that are copied, %").fill("25")
    await form.get_by_role("button", name="Change").click()
    await expect_message(page, "dark gets copies of 25 % of the requests")
    assert experiment_named(browser_house, "globex", "verse")["shadow"]["share"] == 2_500
    assert await watched.violations() == []
    await page.get_by_role("link", name="Results").click()

    await act(page, "Change weights")
    form = dialog(page, "Change weights")
    await form.get_by_label("control, part of the new units").fill("3")
    await form.get_by_label("treatment, part of the new units").fill("0.012")
    await form.get_by_role("button", name="Change").click()
    await expect(form.locator(".field-error")).to_contain_text("At most two digits after the point")
    await form.get_by_label("treatment, part of the new units").fill("1")
    await expect(form).to_contain_text("gets 75 % of the new units")
    await form.get_by_label("control, part of the new units").fill("0")
    await form.get_by_role("button", name="Change").click()
    zero = form.locator(".field", has_text="At least two arms need a part above 0")
    await expect(zero).to_contain_text("control, part of the new units")
    await form.get_by_label("control, part of the new units").fill("3")
    await expect(zero).to_have_count(0)
    await expect(form).to_contain_text("The parts add up to 4, not 100: each arm gets its share of that sum")
    await expect(form.get_by_role("note")).to_contain_text("Units that have seen an arm keep it")
    await form.get_by_role("button", name="Change").click()
    await expect_message(page, "The weights of verse change")
    await page.get_by_role("button", name="Pause").click()
    await confirm(page, "Pause verse?", "Pause")
    await expect(lead).to_contain_text("paused")
    await page.get_by_role("button", name="Go on").click()
    await confirm(page, "Let verse go on?", "Go on")
    await expect(lead).to_contain_text("running")
    await act(page, "Stop for good")
    await confirm(page, "Stop verse for good?", "Stop the experiment", typed="verse")
    await page.get_by_role("link", name="How to call it").click()
    stopped = page.get_by_role("note").filter(has_text="That is the control, until an arm is chosen")
    await expect(stopped).to_contain_text("“verse” answers everybody with tiny:poet@1")
    await page.get_by_role("button", name="Choose an arm").click()
    asked = dialog(page, "Which arm of verse stays?")
    await expect(asked.get_by_label("Arm")).to_have_value("")
    await expect(asked.get_by_role("button", name="Choose an arm first")).to_be_disabled()
    await asked.get_by_label("Arm").select_option("control")
    await expect(asked).to_contain_text(f"get tiny:poet@1{SETTINGS} within two seconds")
    await asked.get_by_label("Arm").select_option("treatment")
    await confirm(page, "Which arm of verse stays?", "Serve treatment to all")
    await expect(lead).to_contain_text("treatment was chosen")
    assert experiment_named(browser_house, "globex", "verse")["decided_arm"] == "treatment"
    await page.get_by_role("link", name="Results").click()
    await expect(page.get_by_role("note").filter(has_text="treatment was chosen")).not_to_contain_text("decide")
    await page.get_by_role("link", name="How to call it").click()
    answers = page.get_by_role("note").filter(has_text="“verse” answers with")
    await expect(answers).to_contain_text("“verse” answers with tiny:sql-writer@1")
    await expect(answers).to_contain_text("replies name no arm")
    await expect(page.get_by_role("group", name="curl line")).not_to_contain_text("ann-4711")
    await expect(page.get_by_label("Unit")).to_have_count(0)
    assert await watched.violations() == []
    with browser_house.operator() as client:
        project = f"/projects/{browser_house.projects['globex']}"
        moved = client.post(f"{project}/aliases/verse", json={"adapter": "poet", "version": 1})
        assert moved.status_code == 200, moved.text
    await expect(answers).to_contain_text("“verse” answers with poet@1")
    await expect(answers).to_contain_text("The name was moved since")
    await watched.screenshot("light/experiment-calls-decided")
    await act(page, "Archive")
    await confirm(page, "Archive verse?", "Archive")
    await expect(lead).to_contain_text("archived")


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


async def test_the_first_minutes_are_told_in_minutes_and_hours(visit: Visit, browser_house: BrowserHouse) -> None:
    """With an outcome window of five minutes and units of twenty minutes, texts tell minutes and axes tell times of
    day."""
    umbrella = browser_house.projects["umbrella"]
    arms, analysis = (BASE, f"{BASE}:clinic-notes"), {"outcome_window_seconds": 300, "tightest_at": 100}
    with browser_house.operator() as client:
        id = make_experiment(client, umbrella, name="fresh", arms=arms, analysis=analysis)
    async with await Database.connect(browser_house.dsn) as database, database.transaction() as conn:
        await write_first_minutes(conn, id, minutes=20, window_s=300, of=60)
    watched = await visit()
    page = watched.page
    await page.add_init_script(RECORD_LABELS)
    watched.loads = True  # which runs the script
    await watched.open(f"experiments/{umbrella}/{id}")
    await expect(page.locator(".lead")).to_contain_text("120 units in 0 of 7 whole days since the start")
    await expect(page.get_by_role("img", name=re.compile("Cost: difference from control"))).to_be_visible()
    labels = await page.evaluate("window.labels.filter((text) => text.includes(':') || /[a-z]{3}/i.test(text))")
    times = {text for text in labels if TIME.fullmatch(text)}
    assert len(times) > 1 >= len(set(labels) - times), (labels, "at midnight one is a date")
    await watched.screenshot("light/experiment-first-minutes")
    conclusion = page.get_by_role("note").filter(has_text="What may be concluded so far")
    await expect(conclusion).to_contain_text("0 of 7 whole days since the start are over")
    novelty = page.get_by_role("note").filter(has_text="It may be for the novelty alone")
    await expect(novelty).to_contain_text("here they count for 5 minutes")
    await page.get_by_role("link", name="Set-up").click()
    await expect(page.get_by_text("5 minutes", exact=True)).to_be_visible()
    await expect(page.get_by_text("7 whole days since the start", exact=True)).to_be_visible()
    await page.evaluate("window.labels = []")
    await page.get_by_role("link", name="Health").click()
    await expect(page.get_by_role("img", name=re.compile("New units a day"))).to_be_visible()
    labels = await page.evaluate("window.labels.filter((text) => /[a-z:]/i.test(text))")
    assert len(set(labels)) == 1 and re.fullmatch(r"\d+ \w+", labels[0]), labels
    assert await watched.violations() == []
    await act(page, "Stop for good")
    await expect(dialog(page, "Stop fresh for good?")).to_contain_text("until their windows of 5 minutes end")
    await expect(dialog(page, "Stop fresh for good?")).to_contain_text("0 of 7 whole days since the start are over")


async def test_results_say_what_may_be_concluded(visit: Visit, browser_house: BrowserHouse) -> None:
    """A running experiment shows each difference with its interval, charts, segments, health and how to call it."""
    watched = await visit()
    page = watched.page
    await page.add_init_script(RECORD_LABELS)
    watched.loads = True  # which runs the script
    acme = browser_house.projects["acme"]
    await watched.open(f"experiments?project={acme}")
    await expect(row(page, NAME)).to_contain_text("4.2k")
    await expect(row(page, NAME)).to_contain_text("warm is better")
    await page.get_by_role("link", name=NAME).click()
    decides = page.get_by_role("region", name="What decides")
    await expect(decides).to_contain_text(re.compile(r"\+\d+(\.\d+)? %.*\+\d+(\.\d+)? % to \+\d+(\.\d+)? %", re.DOTALL))
    await expect(decides).to_contain_text("better")
    await expect(
        page.get_by_role("img", name=re.compile(rf"{METRIC}: difference from control: last warm \+"))
    ).to_be_visible()
    await page.evaluate("window.labels = []")
    await page.get_by_label("Metric over time").select_option("ttft_ms.p95")
    await expect(
        page.get_by_role("img", name=re.compile("p95: difference from control: last warm .* ms"))
    ).to_be_visible()
    assert await page.evaluate(DRAWN_IN_TIMES), "the axis has the unit of the metric that is shown"
    await page.get_by_role("button", name="Show as table").first.click()
    await expect(page.get_by_role("region", name="Time to first token, p95")).to_contain_text("to")
    await page.get_by_label("Metric by days since exposure").select_option("cost_nanos")
    by_age = page.locator("figure", has_text="Cost by days since a unit's first request")
    await expect(by_age.get_by_role("img")).to_be_visible()
    await by_age.get_by_role("button", name="Show as table").click()
    await expect(by_age.get_by_role("row")).to_contain_text(["Day", "day 2", "day 1"])
    judged = page.get_by_role("region", name="With a judge")
    await expect(judged.get_by_role("row", name=METRIC)).to_contain_text(re.compile(r"[+-]\d.* to .*\d", re.DOTALL))
    await page.get_by_label("Show segments by").select_option("stream")
    segments = page.get_by_role("region", name="By segment")
    await expect(segments.get_by_role("row", name="No streams").first).to_be_visible()
    await expect(segments.get_by_role("row", name=METRIC).first).to_contain_text(re.compile("better|open"))
    assert await watched.violations() == []
    await watched.screenshot("light/experiment-segments")
    await page.get_by_role("button", name="Stop, then choose an arm").click()
    await expect(dialog(page, f"Stop {NAME} for good?")).to_contain_text("until you choose an arm")
    await page.keyboard.press("Escape")
    await page.get_by_role("link", name="Health").click()
    await expect(page.get_by_text("named no unit")).to_be_visible()
    await page.get_by_role("link", name="Set-up").click()
    await expect(page.get_by_role("group", name="Definition")).to_contain_text('"model": "support"')
    await page.get_by_role("link", name="How to call it").click()
    await expect(page.get_by_role("group", name="curl line")).to_contain_text('"user":"ann-4711"')
    await page.get_by_label("Unit").fill("ann-4711")
    await page.get_by_role("button", name="Tell").click()
    await expect(page.get_by_text(re.compile("“ann-4711” gets (control|warm)"))).to_be_visible()
    await watched.go("/")
    await page.get_by_role("combobox", name="Search").press_sequentially(NAME)
    await expect(page.get_by_role("option", name=NAME)).to_contain_text("experiment")


async def test_an_experiment_that_pauses_itself_says_why(visit: Visit, browser_house: BrowserHouse) -> None:
    """An open page shows, without being reloaded, that the experiment paused itself, and why."""
    initech = browser_house.projects["initech"]
    with browser_house.operator() as client:
        id = make_experiment(client, initech, name="guarded", arms=(BASE, f"{BASE}:tps-reports"))
    watched = await visit()
    page = watched.page
    await watched.open(f"experiments/{initech}/{id}")
    await expect(page.locator(".lead")).to_contain_text("running")
    async with await Database.connect(browser_house.dsn) as database, database.transaction() as conn:
        await write_errors(conn, id, control=4, treatment=60, of=300)
    await ask(browser_house, "initech", "guarded", 1)
    notice = page.get_by_role("note").filter(has_text="It paused itself")
    await expect(notice).to_contain_text("error_rate")
    await expect(page.get_by_role("region", name="Guardrails")).to_contain_text("harmed")
    assert await watched.violations() == []
    await page.get_by_role("button", name="Go on").click()
    await expect(dialog(page, "Let guarded go on?")).to_contain_text("you overrule it")
    await page.keyboard.press("Escape")
    await watched.open("")
    await page.get_by_role("link", name="The experiment guarded paused itself").click()
    await expect(page.get_by_role("heading", level=1, name="guarded")).to_be_visible()


async def test_what_experiments_share_is_made_and_removed(visit: Visit, browser_house: BrowserHouse) -> None:
    watched = await visit()
    page = watched.page
    await watched.open(f"experiments/metrics?project={browser_house.projects['umbrella']}")
    await page.get_by_role("button", name="New metric").first.click()
    form = dialog(page, "New metric of feedback")
    await form.get_by_label("Name").fill("solved")
    await form.get_by_label("A vote is").select_option("label")
    await form.get_by_label("Labels").fill("yes=1\nno")
    await form.get_by_role("button", name="Create metric").click()
    await expect(form.locator(".field-error")).to_contain_text("“no” is no label with its number")
    await form.get_by_label("Labels").fill("yes=1\nno=0")
    await form.get_by_role("button", name="Create metric").click()
    await expect_message(page, "solved can be voted on")
    await expect(row(page, "solved")).to_contain_text("yes = 1, no = 0")
    await expect(page.get_by_role("group", name="feedback line")).to_contain_text('"value":"yes"')
    assert await watched.violations() == []
    await page.get_by_role("button", name="Remove solved").click()
    await confirm(page, "Remove solved?", "Remove metric")
    await expect(row(page, "solved")).to_have_count(0)

    await page.get_by_role("link", name="Layers, holdouts, units").click()
    for what, kind in (("prompts", "layer"), ("global", "holdout")):
        await page.get_by_role("button", name=f"New {kind}").click()
        form = dialog(page, f"New {kind}")
        await form.get_by_label("Name").fill(what)
        await form.get_by_role("button", name=f"Create {kind}").click()
        await expect_message(page, f"The {kind} {what} is made")
        await page.get_by_role("button", name=f"Remove {what}").click()
        await confirm(page, f"Remove the {kind} {what}?", f"Remove {kind}")
        await expect_message(page, f"The {kind} {what} is removed")
    await page.get_by_label("Unit").fill("ann@example.com")
    await page.get_by_role("button", name="Forget it").click()
    await confirm(page, "Forget this unit?", "Forget the unit", typed="ann@example.com")
    await expect_message(page, "No experiment knew this unit")


async def test_a_member_decides_about_their_own_and_a_viewer_only_looks(
    visit: Visit, browser_house: BrowserHouse
) -> None:
    watched = await visit(MEMBER)
    page = watched.page
    watched.expect("404 GET .*/experiments/exp_none")
    await watched.open("experiments")
    await page.get_by_role("link", name=NAME).click()
    await expect(page.get_by_role("button", name="Pause")).to_be_visible()
    await expect(page.get_by_role("region", name="What decides")).to_be_visible()
    await page.wait_for_load_state("networkidle")  # a request that a member may not make would have been refused
    for kind in ("Exposures", "Analysis"):
        async with page.expect_download() as came:
            await page.get_by_role("button", name=kind, exact=True).click()
        assert (await came.value).suggested_filename.startswith(f"{browser_house.experiment}-{kind.lower()}")
    await watched.open(f"experiments/{browser_house.projects['acme']}/exp_none")
    await expect(page.get_by_role("heading", name="There is no experiment with this id")).to_be_visible()
    watched = await visit(VIEWER)
    page = watched.page
    await watched.open(f"experiments/{browser_house.projects['acme']}/{browser_house.experiment}")
    await expect(page.get_by_role("region", name="What decides")).to_be_visible()
    for name in ("Pause", "More actions", "New experiment", "Stop, then choose an arm"):
        await expect(page.get_by_role("button", name=name)).to_have_count(0)
    await watched.open(f"experiments/{browser_house.projects['acme']}/new")
    await expect(page.get_by_role("heading", name="Your role does not show this")).to_be_visible()


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


async def test_what_the_api_warns_of_is_on_the_page_and_asked_about(visit: Visit, browser_house: BrowserHouse) -> None:
    path = await make_draft(browser_house, "globex", "alike")
    watched = await visit()
    page = watched.page
    await watched.open(f"experiments/{path.split('/')[2]}/{path.rsplit('/', 1)[1]}")
    before = page.get_by_role("note").filter(has_text="Look at this before the start")
    await expect(before).to_contain_text("The arms 'control' and 'other' serve the same with the same values")
    size = page.get_by_role("note").filter(has_text="That is for arms of one size: with unequal parts it takes longer")
    await expect(size).to_be_visible()
    assert await watched.violations() == []
    await page.get_by_role("button", name="Start").first.click()
    asked = dialog(page, "Start alike?")
    await expect(asked.get_by_role("note")).to_contain_text("whatever differs between them is chance")
    await page.keyboard.press("Escape")
    change_draft(browser_house, path, arms=two_arms(BASE, f"{BASE}:poet"))
    await page.reload()
    await expect(page.get_by_role("heading", name="This is a draft")).to_be_visible()
    await expect(before).to_have_count(0)


def two_arms(*models: str) -> list[dict[str, Any]]:
    """Return the arms of a definition, the control first, for one model each."""
    names = ("control", "other")
    return [{"name": name, "weight": 1, "target": {"model": model}} for name, model in zip(names, models, strict=True)]


def change_draft(house: BrowserHouse, path: str, **changes: Any) -> None:
    with house.operator() as operator:
        operator.post(path, json=changes).raise_for_status()


@pytest.mark.parametrize("hears", [True, False])
async def test_two_people_change_one_draft_and_neither_change_is_lost(
    visit: Visit, browser_house: BrowserHouse, hears: bool
) -> None:
    """hears: whether the form learns of the other person's change before its own is sent, or from the refusal."""
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


async def test_just_after_the_start_the_metric_that_decides_is_there_and_waits(
    visit: Visit, browser_house: BrowserHouse
) -> None:
    umbrella = browser_house.projects["umbrella"]
    arms, analysis = (BASE, f"{BASE}:clinic-notes"), {"outcome_window_seconds": 300, "min_days": 0}
    with browser_house.operator() as client:
        id = make_experiment(client, umbrella, name="begun", arms=arms, analysis=analysis, layer="begun")
    watched = await visit()
    page = watched.page
    await watched.open(f"experiments/{umbrella}/{id}")
    nothing = page.locator(".notice", has_text="No unit has taken part yet")
    await expect(nothing).to_have_class(re.compile(r"\binfo\b"))
    await page.get_by_role("link", name="Health").click()
    await expect(nothing).to_have_class(re.compile(r"\binfo\b"))
    await expect(page.get_by_text("It works as declared", exact=True)).to_have_count(0)
    async with await Database.connect(browser_house.dsn) as database, database.transaction() as conn:
        await write_errors(conn, id, control=1, treatment=1, of=30)
    await page.get_by_role("link", name="Results").click()
    await ask(browser_house, "umbrella", "begun", 1)
    decides = page.get_by_role("region", name="What decides").first
    await expect(decides.get_by_role("row", name="Cost")).to_contain_text("The first unit's window of 5 minutes ends")
    await expect(page.get_by_label("Metric over time")).to_have_value("cost_nanos")
    await expect(page.get_by_text("No interval yet. The first unit's window of 5 minutes ends")).to_be_visible()


async def test_the_picture_ends_with_what_the_table_says(visit: Visit, browser_house: BrowserHouse) -> None:
    """The chart's last day equals the table, even where the days were read before the table."""
    umbrella = browser_house.projects["umbrella"]
    arms, analysis = (BASE, f"{BASE}:clinic-notes"), {"outcome_window_seconds": 300, "tightest_at": 100}
    with browser_house.operator() as client:
        id = make_experiment(client, umbrella, name="agrees", arms=arms, analysis=analysis, layer="agrees")
    watched = await visit()
    page = watched.page
    await watched.open(f"experiments/{umbrella}/{id}")
    await expect(page.get_by_role("note").filter(has_text="No unit has taken part yet")).to_be_visible()
    async with await Database.connect(browser_house.dsn) as database, database.transaction() as conn:
        await write_first_minutes(conn, id, minutes=20, window_s=300, of=60)
    watched.expect("net::ERR_FAILED")
    await page.route("**/timeline*", lambda route: route.abort())
    await ask(browser_house, "umbrella", "agrees", 1)
    await expect(page.get_by_role("region", name="What decides").first).to_contain_text(
        "treatment is better, which is proven"
    )
    await expect(
        page.get_by_role("img", name=re.compile("Cost: difference from control: last treatment −"))
    ).to_be_visible()
    await page.unroute("**/timeline*")


async def test_an_axis_of_seconds_to_hours_has_no_label_twice(visit: Visit, browser_house: BrowserHouse) -> None:
    watched = await visit()
    await watched.open("account")
    labels = await watched.page.evaluate("""async () => {
        const { timeLabels, INSTANTS } = await import("/admin/components/charts/chart_options.js");
        const start = 1_790_000_040;
        const places = [0, 1, 2, 3];
        return INSTANTS.filter((step) => step <= 3600).map(
            (step) => timeLabels(null, places.map((place) => start + place * step), 0, 0, step));
    }""")
    for each in labels:
        assert len(set(each)) == 4, each


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
