"""The playground: two models answer side by side over the public API, with a key that nobody else sees."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest
from playwright.async_api import Page, Route, expect
from playwright.async_api import TimeoutError as PageTimeout

from tests.browser.conftest import Mode, Visit, sign_in
from tests.browser.house import MEMBER, OWNER, VIEWER, BrowserHouse
from tests.patience import PATIENCE_S

MOST_TRIES, STOP_MS = 10, 5000


async def send_message(page: Page, text: str) -> None:
    """Send a message in the playground and wait for the end of the answer."""
    answers = page.locator(".turn.assistant .turn-facts")
    num = await answers.count()
    await page.get_by_label("Message").fill(text)
    await page.keyboard.press("Enter")
    await expect(answers).to_have_count(num + 1)


def keys_made(house: BrowserHouse, project: str) -> list[bool]:
    """Return whether each key that the playground made is still valid."""
    with house.operator() as client:
        keys = client.get(f"/projects/{house.projects[project]}/api_keys?limit=100").json()["data"]
    return [each["revoked_at"] is None for each in keys if each["name"] == "playground"]


async def test_two_models_answer_side_by_side(visit: Visit, browser_house: BrowserHouse) -> None:
    watched = await visit(MEMBER)
    page = watched.page
    await watched.open("playground?model=tiny:support-bot&max_tokens=12")
    await page.get_by_role("button", name="Compare").click()
    await page.get_by_role("button", name="Side 2:").click()
    await page.get_by_role("menuitemradio", name="tiny:pirate", exact=True).click()
    await page.get_by_label("System prompt").fill("Be brief.")
    await page.get_by_label("Temperature").fill("0")
    await page.get_by_label("Message").fill("hello there")
    await page.keyboard.press("Enter")
    answers = page.locator(".turn.assistant")
    await expect(answers.locator(".turn-facts")).to_have_count(2)
    for side, model in ((0, "tiny:support-bot"), (1, "tiny:pirate")):
        await expect(answers.nth(side).get_by_role("heading")).to_have_text(model)
        await expect(answers.nth(side).locator(".turn-facts")).to_contain_text("12 out")
        await expect(answers.nth(side).locator(".turn-facts")).to_contain_text("first token")
    assert await watched.violations() == []
    await watched.screenshot("guide/light-playground", whole=False)

    await page.get_by_label("Message").fill("and again")
    async with page.expect_request("**/v1/chat/completions") as sent:
        await page.get_by_role("button", name="Send").click()
    request = await sent.value
    body = request.post_data_json
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "user"]
    assert (body["temperature"], body["max_tokens"]) == (0, 12)
    key = request.headers["authorization"].removeprefix("Bearer ")
    await expect(answers.locator(".turn-facts")).to_have_count(4)
    assert "max_tokens=12" in page.url and "temperature=0" in page.url
    assert not any(text in page.url for text in ("hello", "brief", key[:12]))
    stored = await page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
    assert key not in stored

    await page.get_by_role("button", name="Code").first.click()
    code = page.get_by_role("dialog")
    await expect(code).to_contain_text("Bearer $LORIKEET_API_KEY")
    await code.get_by_role("radio", name="Python").click()
    await expect(code).to_contain_text('model="tiny:support-bot"')
    assert key not in await code.inner_text()
    await page.keyboard.press("Escape")

    await page.get_by_role("button", name="Revoke it").click()
    await expect(page.get_by_text("The first message makes a key for an hour")).to_be_visible()
    assert True not in keys_made(browser_house, "acme")


async def test_answers_by_responses_go_on_from_the_stored_one(visit: Visit, browser_house: BrowserHouse) -> None:
    with browser_house.operator() as operator:
        project_id = operator.post("/projects", json={"name": "stores"}).json()["id"]
        operator.post(f"/projects/{project_id}", json={"store_days": 1}).raise_for_status()
    watched = await visit()
    page = watched.page
    await watched.open(f"playground?project={project_id}&max_tokens=4&seed=7")
    await page.get_by_role("radio", name="Responses").click()
    await page.get_by_label("System prompt").fill("Be brief.")

    async def sent(text: str) -> dict[str, Any]:
        async with page.expect_request("**/v1/responses") as request:
            await send_message(page, text)
        body: dict[str, Any] = (await request.value).post_data_json
        return body

    said = await sent("hello there")
    assert said["input"] == [{"role": "user", "content": "hello there"}]
    assert (said["instructions"], said["max_output_tokens"], said["seed"]) == ("Be brief.", 4, 7)
    assert said["store"] is False and "previous_response_id" not in said
    await expect(page.locator(".turn-facts").last).to_contain_text("4 out")
    await expect(page.locator(".turn-facts").last).to_contain_text("max output tokens")
    said = await sent("and again")
    assert [message["role"] for message in said["input"]] == ["user", "assistant", "user"]

    await page.get_by_label("Store the answers").check()
    assert (await sent("now stored"))["store"] is True
    said = await sent("and gone on from")
    assert said["input"] == [{"role": "user", "content": "and gone on from"}]
    assert said["previous_response_id"].startswith("resp_")
    assert "api=responses" in page.url and "store=yes" in page.url and "Be" not in page.url
    await page.get_by_role("button", name="Code").click()
    code = page.get_by_role("dialog")
    await expect(code).to_contain_text("/v1/responses")
    await code.get_by_role("radio", name="Python").click()
    await expect(code).to_contain_text("client.responses.create(")
    await expect(code).to_contain_text("extra_body={")


async def test_a_made_key_serves_until_its_page_or_login_ends(visit: Visit, browser_house: BrowserHouse) -> None:
    watched = await visit(None)
    page = watched.page
    await page.context.add_cookies([await sign_in(browser_house.url, OWNER)])  # type: ignore[list-item]
    watched.expect("401 (GET|POST) /(v1/organization|admin/v1)/")  # requests that were sent just before signing out
    await watched.open(f"playground?project={browser_house.projects['hooli']}&max_tokens=4")
    await send_message(page, "hello")
    await page.get_by_role("link", name="Requests", exact=True).first.click()
    await page.get_by_role("link", name="Playground", exact=True).first.click()
    await send_message(page, "hello again")
    assert keys_made(browser_house, "hooli") == [True]
    await page.reload()
    await watched.settled()
    async with asyncio.timeout(PATIENCE_S):  # the browser tells nobody how a request ends whose page is gone
        while await asyncio.to_thread(keys_made, browser_house, "hooli") != [False]:
            pass
    await send_message(page, "hello from another page")
    assert keys_made(browser_house, "hooli") == [False, True]
    await page.get_by_role("button", name="Account of").click()
    await page.get_by_role("menuitem", name="Sign out").click()
    await page.wait_for_url("**/admin/signin*")
    assert keys_made(browser_house, "hooli") == [False, False]


async def test_an_answer_is_stopped_and_a_wrong_setting_is_named(visit: Visit, browser_house: BrowserHouse) -> None:
    watched = await visit()
    page = watched.page
    await watched.open("playground")
    await page.get_by_label("Message").fill("hello")
    await expect(page.get_by_text("Choose the tenant that is called for first.")).to_be_visible()
    await page.get_by_label("Tenant", exact=True).select_option(label="acme")
    for _ in range(MOST_TRIES):
        await page.get_by_label("Message").fill("hello")
        await page.get_by_role("button", name="Send").click()
        await expect(page.locator(".turn.assistant .turn-text").last).to_contain_text("hello")
        with suppress(PageTimeout):  # on a busy machine an answer may be whole before anybody could stop it
            await page.get_by_role("button", name="Stop", exact=True).click(timeout=STOP_MS)
            break
    await expect(page.get_by_text("Stopped by you")).to_be_visible()
    turns = await page.locator(".turn").count()
    for label, wrong, sentence in (
        ("Temperature", "7", "It is at most 2."),
        ("Top p", "-1", "It is at least 0."),
        ("Max tokens", "0", "It is at least 1."),
        ("Seed", "x", "whole number"),
        ("Stop at", "a\nb\nc\nd\ne", "At most 4 texts"),
    ):
        await page.get_by_label(label, exact=True).fill(wrong)
        await page.get_by_label("Message").fill("hello")
        await page.keyboard.press("Enter")
        await expect(page.locator(".field-error")).to_contain_text(sentence)
        await expect(page.locator(".composer")).to_contain_text("A setting is wrong")
        await expect(page.get_by_label("Message")).to_have_value("hello")
        await page.get_by_label(label, exact=True).fill("")
    await expect(page.locator(".turn")).to_have_count(turns)
    await page.get_by_text("JSON schema").click()
    await page.get_by_label("Schema", exact=True).fill("{")
    await expect(page.locator(".field-error").last).to_contain_text("not valid JSON")
    await page.get_by_role("button", name="Clear").click()
    await expect(page.locator(".turn")).to_have_count(0)


@pytest.mark.parametrize("mode", ["light", "phone"])
async def test_a_long_model_is_shown_to_its_end(visit: Visit, browser_house: BrowserHouse, mode: Mode) -> None:
    watched = await visit(mode=mode)
    watched.expect("404 GET .*/adapters/a-very-long-name-.*/versions")
    name = f"tiny:{'a-very-long-name-' * 10}@12"
    await watched.open(f"playground?project={browser_house.projects['acme']}&model={name}&with={name}")
    picker = watched.page.get_by_role("button", name="Side 1:")
    await expect(picker).to_have_text(name)
    await expect(picker).to_have_attribute("title", f"Side 1: {name}")
    assert await picker.locator("span").evaluate("node => node.scrollWidth <= node.clientWidth")
    code = await watched.page.get_by_role("button", name="Code").first.bounding_box()
    box = await picker.bounding_box()
    assert code is not None and box is not None and box["x"] + box["width"] <= code["x"]
    assert await watched.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_on_a_phone_the_tenant_comes_first_and_settings_last(visit: Visit, browser_house: BrowserHouse) -> None:
    watched = await visit(mode="phone")

    async def places() -> list[str]:
        found = {}
        for name, shown in (
            ("tenant", watched.page.get_by_label("Tenant", exact=True)),
            ("chat", watched.page.get_by_role("log")),
            ("temperature", watched.page.get_by_label("Temperature")),
        ):
            box = await shown.bounding_box()
            assert box is not None
            found[name] = box["y"]
        return sorted(found, key=found.__getitem__)

    await watched.open("playground")
    assert await places() == ["tenant", "chat", "temperature"]
    await watched.open(f"playground?project={browser_house.projects['acme']}")
    assert await places() == ["chat", "tenant", "temperature"]


async def test_who_makes_no_keys_pastes_one(visit: Visit, browser_house: BrowserHouse) -> None:
    watched = await visit(VIEWER)
    page = watched.page
    await watched.open(f"playground?project={browser_house.projects['globex']}&max_tokens=4")
    await page.get_by_label("API key").fill(browser_house.keys["globex"])
    await page.get_by_role("button", name="Use this key").click()
    await page.get_by_role("button", name="Model:").click()
    await page.get_by_role("menuitemradio", name="tiny:poet", exact=True).click()
    await page.get_by_label("Message").fill("hello")
    await page.keyboard.press("Enter")
    await expect(page.locator(".turn-facts")).to_contain_text("4 out")
    await page.get_by_role("button", name="Forget it").click()
    await expect(page.get_by_label("API key")).to_be_visible()


async def test_coming_back_finds_the_models_and_numbers_and_nothing_that_was_said(
    visit: Visit, browser_house: BrowserHouse
) -> None:
    watched = await visit(MEMBER)
    page = watched.page
    await watched.open("playground?model=tiny:support-bot&with=tiny:pirate&max_tokens=3")
    await say_to_two(page, "a secret of mine")
    await page.get_by_role("link", name="Requests", exact=True).first.click()
    await page.get_by_role("link", name="Playground", exact=True).first.click()
    await expect(page.get_by_role("button", name="Side 1: tiny:support-bot")).to_be_visible()
    await expect(page.get_by_role("button", name="Side 2: tiny:pirate")).to_be_visible()
    await expect(page.get_by_label("Max tokens")).to_have_value("3")
    stored = await page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
    assert "support-bot" in stored and "secret" not in stored
    await watched.open("playground?model=tiny:pirate")
    await expect(page.get_by_role("button", name="Model: tiny:pirate")).to_be_visible()
    await expect(page.get_by_label("Max tokens")).to_have_value("")


async def say_to_two(page: Page, text: str) -> None:
    await page.get_by_label("Message").fill(text)
    await page.keyboard.press("Enter")
    await expect(page.locator(".turn.assistant .turn-facts")).to_have_count(2)


async def test_a_refusal_leads_to_its_explanation(visit: Visit, browser_house: BrowserHouse) -> None:
    with browser_house.operator() as operator:
        project_id = operator.post("/projects", json={"name": "stopped"}).json()["id"]
        operator.post(f"/projects/{project_id}/limits", json={"unit": "requests", "max": 0, "window": "day"})
    watched = await visit()
    page = watched.page
    watched.expect("429 POST /v1/chat/completions")
    watched.expect("404 GET /v1/organization/refusals/req_")
    await watched.open(f"playground?project={project_id}")
    await page.get_by_label("Message").fill("hello")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="You, not answered")).to_be_visible()
    await expect(page.get_by_label("Message")).to_have_value("hello")
    await page.get_by_role("link", name="Why was this refused?").click()
    await expect(page.get_by_role("dialog", name="Why was this refused?")).to_be_visible()
    assert "/refusals?" in page.url and "q=req_" in page.url


def chunks(*deltas: dict[str, str]) -> str:
    """Return the events of a streamed chat."""
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    bodies = [{"choices": [choice]} for choice in [*choices, {"index": 0, "delta": {}, "finish_reason": "stop"}]]
    return "".join(f"data: {json.dumps(body)}\n\n" for body in bodies) + "data: [DONE]\n\n"


async def test_reasoning_is_apart_and_open_until_the_answer_comes(visit: Visit, browser_house: BrowserHouse) -> None:
    watched = await visit(MEMBER)
    page = watched.page
    reply = chunks({"reasoning_content": "It may "}, {"reasoning_content": "be even."})

    async def answer(route: Route) -> None:
        await route.fulfill(status=200, headers={"content-type": "text/event-stream"}, body=reply)

    await page.route("**/v1/chat/completions", answer)
    await watched.open("playground?model=tiny:support-bot")
    await send_message(page, "2 + 2?")
    reasoning = page.locator(".turn-reasoning")
    await expect(reasoning.get_by_text("It may be even.")).to_be_visible()
    reply = chunks({"reasoning_content": "Again."}, {"content": "Four."})
    await send_message(page, "And?")
    await expect(page.locator(".turn.assistant .turn-text").nth(1)).to_have_text("Four.")
    await expect(reasoning.nth(1).get_by_text("Again.")).to_be_hidden()
    await reasoning.nth(1).get_by_text("Reasoning").click()
    await expect(reasoning.nth(1).get_by_text("Again.")).to_be_visible()
    assert await watched.violations() == []
    await page.unroute("**/v1/chat/completions")
