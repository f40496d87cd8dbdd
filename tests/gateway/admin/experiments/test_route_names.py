"""A name is an experiment's or a route's."""

from __future__ import annotations

from tests.gateway.admin.experiments.conftest import Lab


async def test_an_experiment_takes_no_name_of_a_route(lab: Lab) -> None:
    made = await lab.make()
    document = {"root": {"target": "tiny"}}
    route = await lab.client.post(f"{lab.project}/routes", json={"name": made["model"], "document": document})
    assert route.status_code == 200, route.text
    assert await lab.refusal(f"{lab.path}/{made['id']}/start", {}) == (409, "model")
