"""Experiments: made in a form that tells how long they take, started, watched, changed, stopped and decided."""

from __future__ import annotations

import re

from playwright.async_api import expect

from gateway.db.pool import Database
from tests.browser.acts import confirm, dialog, expect_message, row
from tests.browser.conftest import Visit
from tests.browser.experiment import NAME, make_experiment, write_errors
from tests.browser.experiment_acts import act, ask_for_units, change_draft, experiment_named, make_draft, two_arms
from tests.browser.house import MEMBER, VIEWER, BrowserHouse
from tests.gateway.live import BASE

UNITS = 12
SETTINGS = " with temperature 0.2, the system prompt “Be warm.”, whatever a request gives"


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

    assert await ask_for_units(browser_house, "globex", "verse", UNITS) == {"control", "treatment"}
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
        await write_errors(conn, id, control=4, treatment=60, num_units=300)
    await ask_for_units(browser_house, "initech", "guarded", 1)
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
