"""A shadow arm over HTTP: settled and held like the arms, shown beside them, and audited without its prompt."""

from __future__ import annotations

import datetime
import json
from typing import Any

from gateway.db.experiments.experiments import find_experiment
from gateway.db.ledger.usage import UsageEvent, write_usage_events
from gateway.domain.billing.book import SHADOW_TIER
from gateway.domain.experiments.definition import SHADOW_ARM
from gateway.experiments.notes import Notes
from tests.gateway.admin.experiments.conftest import MODEL, Lab

DARK: dict[str, Any] = {
    "name": "dark",
    "target": {"model": f"{MODEL}@3", "defaults": {"system_prompt": "a secret of the shadow"}},
    "share": 500,
}


async def test_a_shadow_arm_is_settled_held_and_let_go_with_the_arms(lab: Lab) -> None:
    made = await lab.make(shadow=DARK)
    assert (made["shadow"]["share"], made["shadow"]["serves"]) == (500, None)
    running = await lab.do(made, "start")
    assert running["shadow"]["serves"]["model"] == f"{MODEL}@3"
    assert [arm["name"] for arm in running["arms"]] == ["control", "warm"]
    versions = f"{lab.project}/adapters/support/versions"
    assert (await lab.client.post(f"{versions}/3/retire", json={})).status_code in (404, 405, 409)
    refused = await lab.client.delete(f"{lab.project}/adapters/support")
    assert (refused.status_code, "support-tone" in refused.text) == (409, True)
    async with lab.database.acquire() as conn:
        rows = await conn.fetch("SELECT arm, version FROM experiment_arms ORDER BY arm")
    assert [tuple(row) for row in rows] == [(0, 1), (1, 2), (SHADOW_ARM, 3)]
    stopped = await lab.do(made, "stop")
    assert await lab.refusal(f"{lab.path}/{made['id']}/decide", {"arm": "dark"}) == (400, "arm")
    decided = await lab.do(made, "decide", arm="warm")
    assert stopped["shadow"] == decided["shadow"]
    logs = json.dumps((await lab.client.get("/audit_logs", params={"limit": 100})).json())
    assert "a secret of the shadow" not in logs
    assert logs.count("sha256:") >= 1


async def test_a_shadow_arm_that_cannot_be_served_stops_the_start_by_its_name(lab: Lab) -> None:
    made = await lab.make(shadow=DARK | {"target": {"model": f"{MODEL}@9"}})
    assert await lab.refusal(f"{lab.path}/{made['id']}/start", {}) == (409, "shadow.target.model")


async def test_only_the_share_of_a_shadow_arm_changes_while_it_runs(lab: Lab) -> None:
    made = await lab.make(shadow=DARK)
    without = await lab.do(made, "", shadow=None)
    assert without["shadow"] is None
    await lab.do(made, "", shadow=DARK)
    await lab.do(made, "start")
    path = f"{lab.path}/{made['id']}"
    assert (await lab.do(made, "", shadow=DARK | {"share": 0}))["shadow"]["share"] == 0
    assert await lab.refusal(path, {"shadow": None}) == (400, "shadow")
    assert await lab.refusal(path, {"shadow": DARK | {"name": "other"}}) == (400, "shadow.name")
    assert await lab.refusal(path, {"shadow": DARK | {"target": {"model": "tiny"}}}) == (400, "shadow.target")


async def test_results_show_what_copies_came_to_and_units_know_nothing_of_them(lab: Lab) -> None:
    made = await lab.make(shadow=DARK)
    await lab.do(made, "start")
    empty = (await lab.client.get(f"{lab.path}/{made['id']}/results")).json()["shadow"]
    assert (empty["requests"], empty["ttft_ms"], empty["outcomes"]) == (0, {"p50": None, "p95": None}, {})
    now = datetime.datetime.now(datetime.UTC)
    async with lab.database.transaction() as conn:
        row = await find_experiment(conn, lab.project_id, made["id"])
        organization = await conn.fetchval("SELECT organization_id FROM projects WHERE id = $1", lab.project_id)
        assert row is not None
        await write_usage_events(
            conn, [_event(made["id"], organization, lab.project_id, number, now) for number in range(5)]
        )
    notes = Notes(lab.database, lost=None)  # type: ignore[arg-type]
    for outcome in ("answered", "answered", "full"):
        notes.note_shadow_outcome(made["id"], outcome)  # type: ignore[arg-type]
    await notes.flush()
    found = (await lab.client.get(f"{lab.path}/{made['id']}/results")).json()
    shadow = found["shadow"]
    assert (shadow["name"], shadow["requests"], shadow["errors"]) == ("dark", 4, 1)
    assert (shadow["prompt_tokens"], shadow["completion_tokens"]) == (50, 15)
    assert shadow["ttft_ms"] == {"p50": 20.0, "p95": 29.0}
    assert shadow["engine_ms"] == {"p50": 30.0, "p95": 30.0}
    assert shadow["outcomes"] == {"answered": 2, "full": 1}
    assert found["not_analysed"] == {}, "what becomes of copies is no reason of a request"
    health = (await lab.client.get(f"{lab.path}/{made['id']}/health")).json()
    assert (health["not_analysed"], health["analysed_units"], health["num_waiting"]) == ({}, 0, 0)
    async with lab.database.acquire() as conn:
        buckets = await conn.fetch("SELECT ttft_buckets FROM rollup_queue WHERE cardinality(ttft_buckets) > 0")
    assert buckets == [], "nobody waits for a copy: its times are in no chart of what tenants wait for"


def _event(experiment_id: str, organization: str, project_id: str, number: int, at: datetime.datetime) -> UsageEvent:
    """Return the usage of a copy; the copies include the second of several prompts, and one that failed."""
    ids = ["req_a_shadow", "req_a_shadow.1", "req_b_shadow", "req_c_shadow", "req_d_shadow"]
    return UsageEvent(
        request_id=ids[number],
        attempt=0,
        organization_id=organization,
        project_id=project_id,
        api_key_id="key",
        endpoint="/v1/completions",
        model=MODEL,
        adapter_id=None,
        adapter_version=None,
        adapter_digest=None,
        stream=False,
        prompt_tokens=10,
        cached_tokens=0,
        completion_tokens=3,
        discarded_tokens=0,
        finish_reason="error" if number == 4 else "length",
        queue_ms=1.0,
        prefill_ms=10.0,
        decode_ms=20.0,
        ttft_ms=10.0 * number if number != 1 else 1_000.0,
        latency_ms=50.0,
        adapter_load_bytes=0,
        created_at=at,
        finished_at=at,
        service_tier=SHADOW_TIER,
        experiment_id=experiment_id,
        experiment_version=1,
        experiment_arm=SHADOW_ARM,
        experiment_epoch=0,
    )
