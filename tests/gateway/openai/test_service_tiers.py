"""A project's requests get the service tiers that the operator allows, and no weight of their own choice."""

from __future__ import annotations

import httpx

from tests.gateway.conftest import House
from tests.installation.waiting import wait_until
from tests.patience import PATIENCE_S


def chat(house: House, key: str, tier: str) -> httpx.Response:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "service_tier": tier}
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(f"{house.url}/v1/chat/completions", json=body, headers=headers, timeout=PATIENCE_S)


def test_priority_is_for_projects_that_may_have_it(house: House) -> None:
    with httpx.Client(
        base_url=f"{house.url}/v1/organization",
        headers={"authorization": f"Bearer {house.operator_key}"},
        timeout=PATIENCE_S,
    ) as operator:
        project = operator.post("/projects", json={"name": "tiers"}).json()
        assert project["service_tiers"] == ["default", "flex"]
        path = f"/projects/{project['id']}"
        key = operator.post(f"{path}/api_keys", json={"scopes": ["inference"]}).json()["value"]
        refused = chat(house, key, "priority")
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert (error["param"], error["code"]) == ("service_tier", "service_tier_not_allowed")
        assert "It may use: 'auto', 'default', 'flex'." in error["message"]
        for tier, served in (("flex", "flex"), ("auto", "default"), ("default", "default")):
            assert chat(house, key, tier).json()["service_tier"] == served

        assert operator.post(path, json={"service_tiers": ["priority", "default"]}).status_code == 200
        wait_until(lambda: chat(house, key, "priority").status_code == 200, "the change reached no gateway")
        assert chat(house, key, "priority").json()["service_tier"] == "priority"
        wait_until(lambda: chat(house, key, "flex").status_code == 400, "the change reached no gateway")
        without = operator.post(path, json={"service_tiers": ["flex"]})
        assert (without.status_code, without.json()["error"]["param"]) == (400, "service_tiers")
