"""Changes of experiments: a draft can be changed in everything, a started one only where no exposed unit moves."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.db.experiments.experiments import ExperimentRow, find_experiment
from tests.gateway.admin.experiments.conftest import Lab, definition


async def row_of(lab: Lab, made: dict[str, Any]) -> ExperimentRow:
    async with lab.database.acquire() as conn:
        row = await find_experiment(conn, lab.project_id, made["id"])
    assert row is not None
    return row


async def test_a_draft_changes_in_every_field(lab: Lab) -> None:
    await lab.client.post(f"{lab.project}/experiment_layers", json={"name": "search"})
    await lab.client.post(f"{lab.project}/holdouts", json={"name": "quarter", "size": 500})
    made = await lab.make()
    changes: list[dict[str, Any]] = [
        {"name": "other"},
        {"model": "other-bot"},
        {"unit": {"from": "metadata.seat"}},
        {"coverage": 100},
        {"layer": "search"},
        {"holdout": "quarter"},
        {"analysis": {"alpha": 0.01}},
        {"metrics": {"primary": [{"metric": "ttft_ms.p95", "goal": "decrease"}]}},
    ]
    for at, change in enumerate(changes):
        after = await lab.do(made, "", **change)
        assert after["version"] == 2 + at
        (field, value) = next(iter(change.items()))
        if isinstance(value, dict):
            assert {**after[field], **value} == after[field] or field == "metrics"
        else:
            assert after[field] == value
    assert after["metrics"]["primary"] == [{"metric": "ttft_ms.p95", "goal": "decrease"}]
    assert (await lab.do(made, "", holdout=None))["holdout"] is None
    same = await lab.do(made, "", name="other")
    assert same["version"] == 2 + len(changes), "what changes nothing is no change"
    assert (await lab.events()).count("experiment.changed") == len(changes) + 1


async def test_a_change_for_another_version_is_a_conflict(lab: Lab) -> None:
    made = await lab.make()
    await lab.do(made, "", version=1, coverage=100)
    assert await lab.refusal(f"{lab.path}/{made['id']}", {"version": 1, "coverage": 200}) == (409, "version")
    await lab.do(made, "", version=2, coverage=200)


async def test_coverage_grows_at_once_and_never_shrinks(lab: Lab) -> None:
    made = await lab.make(coverage=1000)
    await lab.do(made, "start")
    grown = await lab.do(made, "", coverage=3000)
    assert (grown["coverage"], grown["version"], grown["enrolling"]) == (3000, 2, True)
    row = await row_of(lab, made)
    assert row.slots is not None
    assert (row.slots.count(1), row.slots[:1000]) == (3000, bytes([1]) * 1000)
    assert await lab.refusal(f"{lab.path}/{made['id']}", {"coverage": 2000}) == (400, "coverage")


async def test_a_layer_that_is_full_refuses_what_it_cannot_hold(lab: Lab) -> None:
    first = await lab.make(name="first", model="first-bot", coverage=6000)
    second = await lab.make(name="second", model="second-bot", coverage=5000)
    await lab.do(first, "start")
    reply = await lab.client.post(f"{lab.path}/{second['id']}/start", json={})
    assert (reply.status_code, reply.json()["error"]["param"]) == (409, "coverage")
    said = "has 40 % of its units free, and 50 % are needed. 'first' (running) holds 60 %, until it is decided"
    assert said in reply.json()["error"]["message"]
    (layer,) = (await lab.client.get(f"{lab.project}/experiment_layers")).json()["data"]
    assert (layer["name"], layer["free"], layer["experiments"]) == ("default", 4000, ["first"])
    await lab.do(second, "", coverage=4000)
    await lab.do(second, "start")
    assert await lab.refusal(f"{lab.path}/{first['id']}", {"coverage": 6001}) == (409, "coverage")
    one, other = await row_of(lab, first), await row_of(lab, second)
    assert one.slots is not None and other.slots is not None
    assert not any(a and b for a, b in zip(one.slots, other.slots, strict=True))
    await lab.do(first, "stop")
    (layer,) = (await lab.client.get(f"{lab.project}/experiment_layers")).json()["data"]
    assert layer["free"] == 0, "units of a stopped experiment still have outcomes, which nothing else may change"
    await lab.do(first, "decide", arm="control")
    (layer,) = (await lab.client.get(f"{lab.project}/experiment_layers")).json()["data"]
    assert layer["free"] == 6000, "a decided experiment gives its units back"


async def test_weights_close_the_enrolment_for_the_bookkeeper(lab: Lab) -> None:
    made = await lab.make()
    await lab.do(made, "start")
    arms = definition()["arms"]
    arms[0]["weight"], arms[1]["weight"] = 1, 3
    after = await lab.do(made, "", arms=arms)
    assert (after["enrolling"], after["next_weights"]) == (False, [1, 3])
    row = await row_of(lab, made)
    assert (row.closed_at is not None, len(row.tables or ())) == (True, 1), "exposed units keep the table that they had"
    again = await lab.client.post(f"{lab.path}/{made['id']}", json={"coverage": 9000})
    assert (again.status_code, again.json()["error"]["param"]) == (409, "arms")
    assert "Try again in some seconds" in again.json()["error"]["message"]
    paused = await lab.do(made, "pause")
    assert paused["next_weights"] == [1, 3]


async def test_an_arm_ends_for_good_and_the_others_stay(lab: Lab) -> None:
    arms = [*definition()["arms"], {"name": "cold", "weight": 5000, "target": {"model": "tiny"}}]
    made = await lab.make(arms=arms)
    await lab.do(made, "start")
    ended = [arms[0], arms[1], arms[2] | {"weight": 0, "ended": True}]
    after = await lab.do(made, "", arms=ended)
    assert [arm["ended"] for arm in after["arms"]] == [False, False, True]
    assert (after["enrolling"], after["next_weights"]) == (True, None)
    row = await row_of(lab, made)
    assert (list(row.ended), len(row.tables or ())) == ([2], 2)
    assert await lab.refusal(f"{lab.path}/{made['id']}", {"arms": arms}) == (400, "arms[2].ended")
    two = [arms[0], arms[1] | {"weight": 0, "ended": True}, ended[2]]
    assert await lab.refusal(f"{lab.path}/{made['id']}", {"arms": two}) == (400, "arms")


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"name": "other"}, "name"),
        ({"model": "other"}, "model"),
        ({"unit": {"from": "user"}}, "unit"),
        ({"analysis": {"alpha": 0.1}}, "analysis"),
        ({"metrics": {"primary": [{"metric": "ttft_ms", "goal": "decrease"}]}}, "metrics.primary"),
        ({"arms": definition()["arms"][::-1]}, "arms[0].name"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
async def test_what_may_not_change_after_the_start_is_refused_by_name(
    lab: Lab, change: dict[str, Any], param: str
) -> None:
    made = await lab.make()
    await lab.do(made, "start")
    assert await lab.refusal(f"{lab.path}/{made['id']}", change) == (400, param)
    assert (await row_of(lab, made)).version == 1


async def test_a_guardrail_is_added_while_it_runs(lab: Lab) -> None:
    made = await lab.make()
    await lab.do(made, "start")
    metrics = definition()["metrics"]
    metrics["guardrails"].append({"metric": "refusal_rate", "action": "alert"})
    after = await lab.do(made, "", metrics=metrics)
    assert [each["metric"] for each in after["metrics"]["guardrails"]] == ["error_rate", "ttft_ms.p95", "refusal_rate"]
    fewer = definition()["metrics"] | {"guardrails": []}
    assert await lab.refusal(f"{lab.path}/{made['id']}", {"metrics": fewer}) == (400, "metrics.guardrails")


async def test_a_stopped_experiment_does_not_change(lab: Lab) -> None:
    made = await lab.make()
    await lab.do(made, "start")
    await lab.do(made, "stop")
    assert await lab.refusal(f"{lab.path}/{made['id']}", {"coverage": 9000}) == (409, "state")
