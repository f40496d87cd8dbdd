"""The keys that may use an experiment's name, the places that list the name, and the requests that expose no unit."""

from __future__ import annotations

import pytest

from gateway.db.ids import new_id
from tests.gateway.experiments.making import ArmOf
from tests.gateway.routing.lab import HEADER, Lab

TWO = (ArmOf("control", "bot", 1), ArmOf("base"))
_POOL_ALIAS = """
    INSERT INTO model_aliases (id, project_id, name, target_kind, pool_id, treatment)
    VALUES ($1, $2, $3, 'pool', (SELECT id FROM pools WHERE name = 'tiny'), $4)
"""


@pytest.mark.parametrize(
    ("models", "may"),
    [
        (["support-bot"], True),
        (["tiny", "tiny:bot"], True),
        (["tiny:bot"], False),
        (["tiny"], False),
        (["other-bot"], False),
    ],
)
async def test_a_key_needs_the_name_or_what_all_arms_serve(lab: Lab, models: list[str], may: bool) -> None:
    await lab.start(TWO)
    client = await lab.tenant.client(models=models)
    body = {"model": "support-bot", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    replies = [await client.post("/v1/chat/completions", json=body | {"user": f"user-{n}"}) for n in range(8)]
    listed = [each["id"] for each in (await client.get("/v1/models")).json()["data"]]
    assert ("support-bot" in listed) == may
    if may:
        assert {reply.status_code for reply in replies} == {200}
        return
    made_up = await client.post("/v1/chat/completions", json=body | {"model": "support-bit"})
    for reply in replies:
        assert (reply.status_code, HEADER in reply.headers) == (404, False)
        assert reply.text == made_up.text.replace("support-bit", "support-bot")


async def test_names_are_listed_as_aliases_are(lab: Lab) -> None:
    await lab.start()
    async with lab.connected() as conn:
        await conn.execute(_POOL_ALIAS, new_id("alias"), lab.tenant.project_id, "plain", None)
    models = {each["id"]: each for each in (await lab.clients[0].get("/v1/models")).json()["data"]}
    assert (models["support-bot"]["owned_by"], models["support-bot"]["parent"]) == (lab.tenant.project_id, None)
    assert (models["plain"]["root"], models["plain"]["parent"]) == ("tiny", "tiny")
    assert models["plain"]["owned_by"] == lab.tenant.project_id
    for name in ("support-bot", "plain"):
        assert (await lab.clients[0].get(f"/v1/models/{name}")).json() == models[name]


async def test_a_base_model_has_a_name_of_the_projects_own_with_what_its_arm_set(lab: Lab) -> None:
    async with lab.connected() as conn:
        treatment = '{"defaults": {"temperature": 0.25}, "mode": "replace"}'
        await conn.execute(_POOL_ALIAS, new_id("alias"), lab.tenant.project_id, "plain", treatment)
    reply = await lab.ask("ann", model="plain", temperature=1.5)
    assert (reply.status_code, reply.json()["model"]) == (200, "plain")
    asked = lab.request(reply)
    assert (asked.adapter, asked.sampling.temperature) == ("", 0.25)
    (row,) = await lab.rows("ledger")
    assert (row["model"], row["experiment_id"]) == ("tiny", None)


async def test_counting_tokens_is_no_exposure(lab: Lab) -> None:
    await lab.start()
    reply = await lab.clients[0].post("/tokenize", json={"model": "support-bot", "prompt": "hello"})
    assert (reply.status_code, HEADER in reply.headers) == (200, False)
    assert (await lab.ask("ann")).status_code == 200
    await lab.rows("experiment_units")
    assert len(await lab.rows("experiment_units")) == 1
    assert await lab.rows("experiment_reasons", 0) == []
