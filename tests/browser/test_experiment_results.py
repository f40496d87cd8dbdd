"""The results of experiments, from the first minutes on: differences, intervals and charts."""

from __future__ import annotations

import re

from playwright.async_api import expect

from gateway.db.pool import Database
from tests.browser.acts import dialog, row
from tests.browser.conftest import Visit
from tests.browser.experiment import METRIC, NAME, make_experiment, write_errors, write_first_minutes
from tests.browser.experiment_acts import act, ask_for_units
from tests.browser.house import BrowserHouse
from tests.gateway.live import BASE

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


async def test_the_first_minutes_are_shown_in_minutes_and_hours(visit: Visit, browser_house: BrowserHouse) -> None:
    """With an outcome window of five minutes and units of twenty minutes, texts give minutes and axes give times of
    day."""
    umbrella = browser_house.projects["umbrella"]
    arms, analysis = (BASE, f"{BASE}:clinic-notes"), {"outcome_window_seconds": 300, "tightest_at": 100}
    with browser_house.operator() as client:
        id = make_experiment(client, umbrella, name="fresh", arms=arms, analysis=analysis)
    async with await Database.connect(browser_house.dsn) as database, database.transaction() as conn:
        await write_first_minutes(conn, id, minutes=20, window_s=300, num_units=60)
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
    await watched.press_keys("/")
    await page.get_by_role("combobox", name="Search").press_sequentially(NAME)
    await expect(page.get_by_role("option", name=NAME)).to_contain_text("experiment")


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
        await write_errors(conn, id, control=1, treatment=1, num_units=30)
    await page.get_by_role("link", name="Results").click()
    await ask_for_units(browser_house, "umbrella", "begun", 1)
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
        await write_first_minutes(conn, id, minutes=20, window_s=300, num_units=60)
    watched.expect("net::ERR_FAILED")
    await page.route("**/timeline*", lambda route: route.abort())
    await ask_for_units(browser_house, "umbrella", "agrees", 1)
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
