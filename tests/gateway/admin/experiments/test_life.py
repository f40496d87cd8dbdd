"""The life of an experiment over HTTP, from a draft to the alias of the arm that was chosen."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.db.experiments.experiments import find_experiment, split_of
from gateway.domain.experiments.allocation import bucket_counts
from tests.gateway.admin.experiments.conftest import MODEL, Lab, definition
from tests.gateway.admin_server import AdminServer


async def test_an_experiment_is_made_started_paused_stopped_decided_and_archived(lab: Lab) -> None:
    made = await lab.make()
    assert (made["object"], made["state"], made["version"]) == ("organization.project.experiment", "draft", 1)
    assert made["possible"] == ["start", "change", "delete"]
    assert [arm["serves"] for arm in made["arms"]] == [None, None]
    assert await lab.aliases() == {}, "a draft takes no name"

    running = await lab.do(made, "start")
    assert (running["state"], running["possible"]) == ("running", ["pause", "stop", "change"])
    assert [arm["serves"]["model"] for arm in running["arms"]] == [f"{MODEL}@1", f"{MODEL}@2"]
    assert (await lab.aliases())["support-bot"]["experiment"] == "support-tone"

    assert (await lab.do(made, "pause"))["state"] == "paused"
    assert (await lab.do(made, "start"))["state"] == "running"
    stopped = await lab.do(made, "stop")
    assert (stopped["state"], stopped["possible"]) == ("stopped", ["decide"])
    decided = await lab.do(made, "decide", arm="warm")
    assert (decided["state"], decided["decided_arm"]) == ("decided", "warm")
    found = (await lab.client.get(f"{lab.path}/{made['id']}/results")).json()
    assert found["conclusion"] == "No unit took part. warm was chosen."
    alias = (await lab.aliases())["support-bot"]
    assert (alias["target_kind"], alias["adapter"], alias["version"]) == ("version", "support", 2)
    assert (alias["has_treatment"], alias["experiment"]) == (True, None)
    assert (await lab.do(made, "archive"))["possible"] == []
    assert await lab.events() == [
        f"experiment.{what}" for what in ("created", "started", "paused", "started", "stopped", "decided", "archived")
    ]


async def test_what_is_not_for_a_state_is_a_conflict_that_says_what_is(lab: Lab) -> None:
    made = await lab.make()
    path = f"{lab.path}/{made['id']}"
    for verb, body in (("pause", {}), ("stop", {}), ("decide", {"arm": "warm"}), ("archive", {})):
        assert await lab.refusal(f"{path}/{verb}", body) == (409, "state")
    await lab.do(made, "start")
    reply = await lab.client.post(f"{path}/start", json={})
    assert (reply.status_code, reply.json()["error"]["param"]) == (409, "state")
    assert "Possible now: pause, stop, change." in reply.json()["error"]["message"]
    assert await lab.refusal(path, method="DELETE") == (409, "state")


async def test_a_draft_is_deleted_and_leaves_its_name(lab: Lab) -> None:
    made = await lab.make()
    reply = await lab.client.delete(f"{lab.path}/{made['id']}")
    assert reply.json() == {
        "id": made["id"],
        "deleted": True,
        "object": "organization.project.experiment.deleted",
    }
    assert (await lab.client.get(f"{lab.path}/{made['id']}")).status_code == 404
    await lab.make()


async def test_an_alias_becomes_the_experiment_and_then_what_was_chosen(lab: Lab) -> None:
    alias = {"name": "support-bot", "adapter": "support", "version": 1}
    before = (await lab.client.post(f"{lab.project}/aliases", json=alias)).json()
    made = await lab.make()
    assert (await lab.aliases())["support-bot"] == before, "a draft leaves the alias alone"
    await lab.do(made, "start")
    held = (await lab.aliases())["support-bot"]
    assert (held["id"], held["target_kind"], held["adapter"]) == (before["id"], "experiment", None)

    move = {"adapter": "support", "version": 2}
    assert await lab.refusal(f"{lab.project}/aliases/support-bot", move) == (409, "name")
    assert await lab.refusal(f"{lab.project}/aliases/support-bot", method="DELETE") == (409, "name")
    assert await lab.refusal(f"{lab.project}/aliases", alias) == (409, "name")
    await lab.do(made, "stop")
    assert await lab.refusal(f"{lab.project}/aliases/support-bot", method="DELETE") == (409, "name")
    await lab.do(made, "decide", arm="control")
    after = (await lab.aliases())["support-bot"]
    assert (after["target_kind"], after["version"], after["pool"]) == ("version", 1, "tiny")
    assert after["has_treatment"] is False
    assert (await lab.client.post(f"{lab.project}/aliases/support-bot", json=move)).json()["version"] == 2


async def test_a_moved_alias_keeps_no_treatment(lab: Lab) -> None:
    made = await lab.make()
    for verb in ("start", "stop"):
        await lab.do(made, verb)
    await lab.do(made, "decide", arm="warm")
    same = {"adapter": "support", "version": 2}
    moved = (await lab.client.post(f"{lab.project}/aliases/support-bot", json=same)).json()
    assert moved["has_treatment"] is False


async def test_arms_are_pinned_at_the_start(lab: Lab) -> None:
    """A base, an adapter without version and an alias with an arm's defaults are moved later, which moves no arm."""
    await lab.client.post(f"{lab.project}/aliases", json={"name": "stable", "adapter": "support", "version": 1})
    arms = [
        {"name": "base", "weight": 1, "target": {"model": "tiny"}},
        {"name": "newest", "weight": 1, "target": {"model": MODEL}},
        {"name": "stable", "weight": 2, "target": {"model": "stable"}},
    ]
    made = await lab.make(arms=arms)
    await lab.do(made, "start")
    await lab.client.post(f"{lab.project}/aliases/stable", json={"adapter": "support", "version": 2})
    await lab.client.post(f"{lab.project}/adapters/support/versions/1/promote", json={})
    shown = (await lab.client.get(f"{lab.path}/{made['id']}")).json()
    assert [arm["serves"]["model"] for arm in shown["arms"]] == ["tiny", f"{MODEL}@3", f"{MODEL}@1"]
    assert [arm["share"] for arm in shown["arms"]] == [0.25, 0.25, 0.5]
    await lab.do(made, "stop")
    await lab.do(made, "decide", arm="base")
    alias = (await lab.aliases())["support-bot"]
    assert (alias["target_kind"], alias["pool"], alias["adapter"]) == ("pool", "tiny", None)


async def test_an_arm_of_a_chosen_alias_has_its_treatment_and_its_own_wins(lab: Lab) -> None:
    first = await lab.make()
    for verb in ("start", "stop"):
        await lab.do(first, verb)
    await lab.do(first, "decide", arm="warm")
    own = {"model": "support-bot", "defaults": {"top_p": 0.5}}
    arms = [
        {"name": "control", "weight": 1, "target": {"model": "support-bot"}},
        {"name": "narrow", "weight": 1, "target": own},
    ]
    second = await lab.make(name="second", model="second-bot", arms=arms)
    await lab.do(second, "start")
    async with lab.database.acquire() as conn:
        rows = await conn.fetch(
            "SELECT treatment FROM experiment_arms WHERE experiment_id = $1 ORDER BY arm", second["id"]
        )
    assert [row["treatment"] for row in rows] == [
        '{"defaults": {"temperature": 0.2}}',
        '{"defaults": {"top_p": 0.5, "temperature": 0.2}}',
    ]


@pytest.mark.parametrize(
    ("model", "why"),
    [
        ("nothing", "no such model"),
        ("tiny:nothing", "not there or not ready"),
        (f"{MODEL}@9", "not there or not ready"),
        ("other:support", "no such model"),
        ("first-bot", "it is the experiment 'first'"),
    ],
)
async def test_an_arm_that_cannot_be_served_is_named_at_the_start(lab: Lab, model: str, why: str) -> None:
    first = await lab.make(name="first", model="first-bot")
    await lab.do(first, "start")
    arms = definition()["arms"]
    arms[1]["target"] = {"model": model}
    made = await lab.make(arms=arms)
    reply = await lab.client.post(f"{lab.path}/{made['id']}/start", json={})
    assert (reply.status_code, reply.json()["error"]["param"]) == (409, "arms[1].target.model"), reply.text
    assert f"The arm 'warm' cannot be served by `{model}`: " in reply.json()["error"]["message"]
    assert why in reply.json()["error"]["message"]
    assert made["warnings"] == [{"param": "arms[1].target.model", "text": reply.json()["error"]["message"]}]
    assert (await lab.client.get(f"{lab.path}/{made['id']}")).json() == made, "a draft is no more than warned about"
    assert "support-bot" not in await lab.aliases()


async def test_an_adapter_of_another_project_is_no_arm(lab: Lab) -> None:
    other = (await lab.client.post("/projects", json={"name": "globex"})).json()["id"]
    await lab.client.post(f"{lab.project}/adapters/support/shares", json={"project_id": other})
    theirs = Lab(lab.client, f"/projects/{other}", lab.database)
    arms = [
        {"name": "control", "weight": 1, "target": {"model": "tiny"}},
        {"name": "shared", "weight": 1, "target": {"model": MODEL}},
    ]
    made = await theirs.make(arms=arms)
    reply = await lab.client.post(f"{theirs.path}/{made['id']}/start", json={})
    assert (reply.status_code, reply.json()["error"]["param"]) == (409, "arms[1].target.model")
    assert "belongs to another project" in reply.json()["error"]["message"]


async def test_an_arm_that_no_engine_loads_stops_the_start(lab: Lab, server: AdminServer) -> None:
    made = await lab.make()
    server.engines.is_ready = False
    assert await lab.refusal(f"{lab.path}/{made['id']}/start", {}) == (409, "arms[0].target.model")
    server.engines.is_ready = True
    await lab.do(made, "start")
    assert {key.split(".")[0] for key in server.engines.resident_keys} == {"a" * 64, "b" * 64}


async def test_a_name_that_a_base_model_or_a_route_has_by_now_stops_the_start(lab: Lab, database: Any) -> None:
    """A base model may come after the draft, and old drafts may share a route's name."""
    made = await lab.make()
    async with database.acquire() as conn:
        await conn.execute("UPDATE experiments SET model = 'tiny' WHERE id = $1", made["id"])
        assert await lab.refusal(f"{lab.path}/{made['id']}/start", {}) == (409, "model")
        route = {"name": "router", "document": {"root": {"target": "tiny"}}}
        assert (await lab.client.post(f"{lab.project}/routes", json=route)).status_code == 200
        await conn.execute("UPDATE experiments SET model = 'router' WHERE id = $1", made["id"])
        assert await lab.refusal(f"{lab.path}/{made['id']}/start", {}) == (409, "model")


async def test_a_model_string_that_another_experiment_holds_is_refused_at_the_start(lab: Lab) -> None:
    first = await lab.make(name="first", model="shared-bot")
    second = await lab.make(name="second", model="shared-bot")
    await lab.do(first, "start")
    reply = await lab.client.post(f"{lab.path}/{second['id']}/start", json={})
    assert (reply.status_code, reply.json()["error"]["param"]) == (409, "model")
    assert "The experiment 'first' holds" in reply.json()["error"]["message"]
    await lab.do(first, "stop")
    await lab.do(first, "decide", arm="control")
    await lab.do(second, "start")


async def test_the_split_has_the_declared_coverage_and_weights(lab: Lab) -> None:
    arms = definition()["arms"]
    arms[0]["weight"], arms[1]["weight"] = 9, 1
    made = await lab.make(arms=arms)
    await lab.do(made, "start")
    async with lab.database.acquire() as conn:
        row = await find_experiment(conn, lab.project_id, made["id"])
    assert row is not None
    split = split_of(row)
    assert (split.slots.count(1), split.slots.count(0), split.paused) == (2000, 8000, False)
    assert [split.tables[0].count(arm) for arm in (0, 1)] == bucket_counts([9, 1]) == [9000, 1000]


async def test_what_an_arm_needs_stays_until_it_is_decided(lab: Lab) -> None:
    made = await lab.make()
    await lab.do(made, "start")
    version = f"{lab.project}/adapters/support/versions/1"
    for state in ("running", "stopped"):
        if state == "stopped":
            await lab.do(made, "stop")
        reply = await lab.client.post(f"{version}/retire", json={})
        assert reply.status_code == 409 and "'support-tone'" in reply.json()["error"]["message"], reply.text
        reply = await lab.client.delete(f"{lab.project}/adapters/support")
        assert reply.status_code == 409 and "'support-tone'" in reply.json()["error"]["message"], reply.text
    assert (await lab.client.post(f"{version.removesuffix('1')}2/retire", json={})).status_code == 409
    await lab.do(made, "decide", arm="warm")
    assert (await lab.client.post(f"{version}/retire", json={})).status_code == 200
    assert (await lab.client.delete(f"{lab.project}/adapters/support")).json()["aliases"] == ["support-bot"]


async def test_a_pool_that_an_arm_needs_is_not_removed(lab: Lab, database: Any) -> None:
    arms = definition()["arms"]
    arms[0]["target"] = {"model": "tiny"}
    arms[1]["target"] = {"model": "tiny", "defaults": {"temperature": 0.1}}
    made = await lab.make(arms=arms)
    await lab.do(made, "start")
    await lab.client.delete(f"{lab.project}/adapters/support")
    async with database.acquire() as conn:
        pool_id = await conn.fetchval("SELECT id FROM pools")
        await conn.execute("UPDATE pools SET num_replicas = 0")
        await conn.execute("UPDATE replicas SET state = 'stopped'")
    change = await lab.client.post(f"/pools/{pool_id}", json={"model": "acme/another-model"})
    assert (change.status_code, change.json()["error"]["code"]) == (409, "held_by_experiment"), change.text
    reply = await lab.client.delete(f"/pools/{pool_id}")
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "held_by_experiment"), reply.text
    assert "'support-tone'" in reply.json()["error"]["message"]
    await lab.do(made, "stop")
    await lab.do(made, "decide", arm="control")
    assert (await lab.client.delete(f"/pools/{pool_id}")).status_code == 200
