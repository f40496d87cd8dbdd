"""A model string is a draft's, an experiment's or a route's, and never two of them at once."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from tests.gateway.admin.experiments.conftest import Lab, definition

DOCUMENT = {"root": {"target": "tiny"}}
RACES = 20


def route(name: str) -> dict[str, Any]:
    return {"name": name, "document": DOCUMENT}


def refusal(reply: httpx.Response) -> tuple[int, str | None]:
    return reply.status_code, reply.json()["error"]["param"]


async def test_an_experiment_takes_no_name_of_a_route(lab: Lab) -> None:
    routes = f"{lab.project}/routes"
    assert (await lab.client.post(routes, json=route("support-bot"))).status_code == 200
    refused = await lab.client.post(lab.path, json=definition())
    assert refusal(refused) == (409, "model") and "A route has the name 'support-bot'" in refused.text
    draft = await lab.make(model="other-bot")
    assert await lab.refusal(f"{lab.path}/{draft['id']}", {"model": "support-bot"}) == (409, "model")
    assert (await lab.client.delete(f"{routes}/support-bot")).status_code == 200
    await lab.do(draft, "", model="support-bot")
    await lab.do(draft, "start")


async def test_a_route_takes_no_name_of_an_experiment_and_no_drafts(lab: Lab) -> None:
    routes, draft = f"{lab.project}/routes", await lab.make()
    for verb in (None, "start", "pause", "stop"):
        if verb is not None:
            await lab.do(draft, verb)
        refused = await lab.client.post(routes, json=route(draft["model"]))
        assert refusal(refused) == (409, "name"), verb
        assert ("the experiment 'support-tone'" in refused.text) == (verb is None)
    await lab.do(draft, "decide", arm="control")
    assert refusal(await lab.client.post(routes, json=route(draft["model"]))) == (409, "name"), "it is an alias now"
    assert (await lab.client.delete(f"{lab.project}/aliases/{draft['model']}")).status_code == 200
    assert (await lab.client.post(routes, json=route(draft["model"]))).status_code == 200


async def test_a_deleted_draft_leaves_its_name_to_routes(lab: Lab) -> None:
    draft = await lab.make()
    assert (await lab.client.delete(f"{lab.path}/{draft['id']}")).status_code == 200
    assert (await lab.client.post(f"{lab.project}/routes", json=route(draft["model"]))).status_code == 200


async def test_of_a_draft_and_a_route_at_once_one_gets_the_name(lab: Lab) -> None:
    """A draft takes a name in two ways, which are both tried: a new draft, and a draft that is changed."""
    draft = await lab.make(name="changing", model="changing-bot")
    for number in range(RACES):
        name = f"bot-{number}"
        calls = [
            lab.client.post(f"{lab.project}/routes", json=route(name)),
            lab.client.post(f"{lab.path}/{draft['id']}", json={"model": name})
            if number % 2
            else lab.client.post(lab.path, json=definition(name=f"e-{number}", model=name)),
        ]
        replies = await asyncio.gather(*(calls if number % 4 < 2 else reversed(calls)))
        assert sorted(reply.status_code for reply in replies) == [200, 409], [reply.text for reply in replies]
    models = [each["model"] for each in (await lab.client.get(lab.path, params={"limit": 100})).json()["data"]]
    names = [each["name"] for each in (await lab.client.get(f"{lab.project}/routes")).json()["data"]]
    assert set(models).isdisjoint(names), (models, names)


async def test_an_experiment_is_refused_the_name_of_a_base_model_at_once(lab: Lab) -> None:
    refused = await lab.client.post(lab.path, json=definition(model="tiny"))
    assert refusal(refused) == (409, "model") and "A base model has the name 'tiny'" in refused.text
    draft = await lab.make()
    assert await lab.refusal(f"{lab.path}/{draft['id']}", {"model": "tiny"}) == (409, "model")
