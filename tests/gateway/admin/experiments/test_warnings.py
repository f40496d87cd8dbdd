"""Drafts name beforehand what would refuse their start; arms that serve the same are named before and after the
start."""

from __future__ import annotations

from typing import Any

from tests.gateway.admin.experiments.conftest import MODEL, Lab


def params_of(shown: dict[str, Any]) -> list[str]:
    return [each["param"] for each in shown["warnings"]]


async def test_a_draft_says_that_another_experiment_has_its_model_string_and_its_units(lab: Lab) -> None:
    first = await lab.make(name="first", coverage=9_000)
    assert first["warnings"] == []
    await lab.do(first, "start")
    second = await lab.make()
    assert params_of(second) == ["model", "coverage"]
    assert "The experiment 'first' has the model string 'support-bot'" in second["warnings"][0]["text"]
    assert "'first' (running) holds 90 %" in second["warnings"][1]["text"]
    changed = await lab.do(second, "", model="other-bot")
    assert params_of(changed) == ["coverage"]
    reply = await lab.client.post(f"{lab.path}/preview", json={"experiment_id": first["id"], "unit": "ann"})
    assert reply.json()["warnings"] == []
    for verb, body in (("stop", {}), ("decide", {"arm": "warm"})):
        assert (await lab.do(first, verb, **body))["warnings"] == []
    assert (await lab.client.get(f"{lab.path}/{second['id']}")).json()["warnings"] == []
    listed = (await lab.client.get(lab.path)).json()["data"]
    assert [each["warnings"] for each in listed] == [None, None], "a list looks nothing up"


async def test_arms_that_serve_the_same_are_named(lab: Lab) -> None:
    """Arms are compared by what they resolve to, however that is written, and by their values."""
    targets: list[dict[str, Any]] = [
        {"model": MODEL},
        {"model": f"{MODEL}@3"},
        {"model": f"{MODEL}@3", "defaults": {"temperature": 0.2}},
        {"model": "nothing"},
        {"model": "nothing"},
    ]
    arms = [{"name": f"arm-{at}", "weight": min(at, 1), "target": each} for at, each in enumerate(targets)]
    made = await lab.make(arms=arms)
    alike = ["arms[1].target", "arms[4].target"]
    assert params_of(made) == ["arms[3].target.model", "arms[4].target.model", *alike, "arms[0].weight"]
    texts = {each["param"]: each["text"] for each in made["warnings"]}
    assert texts["arms[1].target"].startswith("The arms 'arm-0' and 'arm-1' serve the same with the same values")
    assert "has the weight 0" in texts["arms[0].weight"]
    await lab.do(made, "", arms=arms[:3])
    assert params_of(await lab.do(made, "start")) == ["arms[1].target", "arms[0].weight"]
    (log,) = (await lab.client.get("/audit_logs", params={"limit": 1})).json()["data"]
    assert "serve the same" not in str(log), "what was warned about is no part of a change"
