"""Experiments: made in a form that tells how long they take, started, watched, changed, stopped and decided."""

from __future__ import annotations

import re
from typing import Any

import httpx
from playwright.async_api import Page, expect

from gateway.db.pool import Database
from tests.browser.acts import confirm, dialog, row, told
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
"""Notes the texts that pictures draw: what their axes say."""
TIME = re.compile(r"\d\d:\d\d")


def experiment_named(house: BrowserHouse, project: str, name: str) -> dict[str, Any]:
    with house.operator() as operator:
        listed = operator.get(f"/projects/{house.projects[project]}/experiments").json()["data"]
    (found,) = [each for each in listed if each["name"] == name]
    return dict(found)


async def ask(house: BrowserHouse, project: str, model: str, units: int) -> set[str]:
    """Send a request of each of some units; return the arms that replies name."""
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
    """Choose one of the experiment's further actions."""
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
    await expect(plan.locator(".plan-size")).to_contain_text("before 7 whole days since the start are over")
    await expect(plan).to_contain_text("A unit's outcomes count for 7 days and are in the results afterwards")
    await expect(plan.locator(".plan-shadow")).to_have_count(0)
    await page.get_by_role("button", name="Save as a draft").click()
    await told(page, "The draft verse is saved")
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
    await told(page, "verse is changed")
    await page.get_by_role("button", name="Start").first.click()
    asked = dialog(page, "Start verse?")
    await expect(asked).to_contain_text("From now on requests for verse are answered by one of these")
    await expect(asked.get_by_role("listitem")).to_have_text(
        ["control, 50 %: tiny:poet", "treatment, 50 %: tiny:sql-writer"]
    )
    await expect(asked).to_contain_text(copies)
    assert await watched.violations() == []
    await watched.screenshot("light/experiment-start")
    await confirm(page, "Start verse?", "Start")
    await told(page, "verse runs")
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
    await told(page, "dark gets copies of 25 % of the requests")
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
    await expect(form).to_contain_text("The parts add up to 4, not 100: each arm gets its share of that sum")
    await expect(form.get_by_role("note")).to_contain_text("Units that have seen an arm keep it")
    await form.get_by_role("button", name="Change").click()
    await told(page, "The weights of verse change")
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
    await asked.get_by_label("Arm").select_option("treatment")
    await confirm(page, "Which arm of verse stays?", "Serve treatment to all")
    await expect(lead).to_contain_text("treatment was chosen")
    assert experiment_named(browser_house, "globex", "verse")["decided_arm"] == "treatment"
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


PREVIEW_REFUSED = "400 POST .*/experiments/preview"
"""A form that is shown for long asks for what the project's past may not tell."""


async def test_each_wrong_field_is_named_at_the_field(visit: Visit, browser_house: BrowserHouse) -> None:
    """What is empty or wrong before anything is sent; what the API refuses at its field as well."""
    hooli = browser_house.projects["hooli"]
    with browser_house.operator() as client:
        metric = {"name": "solved", "type": "boolean", "goal": "increase", "kind": "mean"}
        client.post(f"/projects/{hooli}/feedback_metrics", json=metric).raise_for_status()
    watched = await visit()
    page = watched.page
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url) if request.method == "POST" else None)
    watched.expect(PREVIEW_REFUSED)
    await watched.open(f"experiments/{hooli}/new")
    save = page.get_by_role("button", name="Save as a draft")
    error = page.locator(".field", has=page.locator(".field-error"))
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
    await window.fill("0.5")
    await page.get_by_label("Counted in").select_option("minutes")
    await expect(error).to_contain_text(["It is at least 1 minute."])
    await window.fill("5")
    await expect(error).to_have_count(0)

    await page.get_by_label("Model string").fill(BASE)
    await page.get_by_label("Serves").nth(1).select_option(BASE)
    watched.expect("40[09] POST .*/experiments(/preview)?$")
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
    await told(page, "The draft fields is saved")


async def test_parts_are_shares_of_their_sum_and_tiny_ones_are_shown(visit: Visit, browser_house: BrowserHouse) -> None:
    watched = await visit()
    page = watched.page
    watched.expect(PREVIEW_REFUSED)
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
    await told(page, "The draft parts is saved")
    shares = [arm["share"] for arm in experiment_named(browser_house, "initech", "parts")["arms"]]
    assert shares == [1 / 3, 2 / 3]
    await expect(row(page, "control")).to_contain_text("33.3 %")


async def test_the_first_minutes_are_told_in_minutes_and_hours(visit: Visit, browser_house: BrowserHouse) -> None:
    """An outcome window of five minutes, an axis of twenty, the first of seven days; whether it fades is open."""
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
    others = [text for text in labels if not TIME.fullmatch(text)]
    assert len(labels) - len(others) > 1 >= len(others), (labels, "at midnight one is a date")
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
    """Of a running experiment: each difference with its interval, the days so far, whether it works as declared."""
    watched = await visit()
    page = watched.page
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
    await page.get_by_label("Metric over time").select_option("ttft_ms.p95")
    await expect(
        page.get_by_role("img", name=re.compile("p95: difference from control: last warm .* ms"))
    ).to_be_visible()
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
    """The page that is open shows it by itself."""
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
    await told(page, "solved can be voted on")
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
        await told(page, f"The {kind} {what} is made")
        await page.get_by_role("button", name=f"Remove {what}").click()
        await confirm(page, f"Remove the {kind} {what}?", f"Remove {kind}")
        await told(page, f"The {kind} {what} is removed")
    await page.get_by_label("Unit").fill("ann@example.com")
    await page.get_by_role("button", name="Forget it").click()
    await confirm(page, "Forget this unit?", "Forget the unit", typed="ann@example.com")
    await told(page, "No experiment knew this unit")


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
    await watched.open(f"experiments/{browser_house.projects['acme']}/exp_none")
    await expect(page.get_by_role("heading", name="There is no experiment with this id")).to_be_visible()
    watched = await visit(VIEWER)
    page = watched.page
    await watched.open(f"experiments/{browser_house.projects['acme']}/{browser_house.experiment}")
    await expect(page.get_by_role("region", name="What decides")).to_be_visible()
    for name in ("Pause", "More actions", "New experiment"):
        await expect(page.get_by_role("button", name=name)).to_have_count(0)
    watched.expect(PREVIEW_REFUSED)
    await watched.open(f"experiments/{browser_house.projects['acme']}/new")
    await expect(page.get_by_role("heading", name="Your role does not show this")).to_be_visible()
