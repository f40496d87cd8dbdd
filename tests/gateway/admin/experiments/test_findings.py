"""Results of an experiment over HTTP, from rows of the ledger: results, days, health, previews, and forgotten units."""

from __future__ import annotations

import asyncio
import datetime
import math
from typing import Any

import httpx

from gateway.admin.experiments.words import days_declared, duration
from gateway.db.experiments import past
from gateway.db.ledger.usage import UsageEvent, write_usage_events
from gateway.db.organization.projects import purge_project
from gateway.domain.experiments.assignment import unit_digest
from tests.gateway.admin.experiments.conftest import Lab, definition
from tests.gateway.admin_server import AdminServer
from tests.gateway.experiments.books_rows import (
    NOW,
    RunningExperiment,
    UnitRequest,
    keep_books,
    make_experiment,
    refuse,
    send,
    unit,
    vote,
    withdraw,
)

HOUR = datetime.timedelta(hours=1)
METRICS = {
    "primary": [{"metric": "completion_tokens", "goal": "decrease"}],
    "guardrails": [{"metric": "error_rate", "action": "pause"}, {"metric": "ttft_ms", "margin": 0.1}],
    "secondary": ["cost_nanos", "ttft_ms.p50"],
}
ANALYSIS = {"outcome_window_seconds": 3600, "min_days": 0, "tightest_at": 100}


async def started(lab: Lab, **changes: Any) -> tuple[dict[str, Any], RunningExperiment]:
    """Start an experiment whose windows last for an hour."""
    made = await lab.make(**{"metrics": METRICS, "analysis": ANALYSIS, "coverage": 10_000} | changes)
    await lab.do(made, "start")
    async with lab.database.acquire() as conn:
        organization_id = await conn.fetchval("SELECT organization_id FROM projects WHERE id = $1", lab.project_id)
    return made, RunningExperiment(organization_id, lab.project_id, made["id"])


async def run(lab: Lab, made: RunningExperiment, num: int = 60) -> None:
    """Write requests of three hours ago for units of both arms; the second arm's replies have half the tokens."""
    sent = [
        UnitRequest(unit(number), arm=number % 2, at=NOW - 3 * HOUR, tokens=(100 + number % 7) // (1 + number % 2))
        for number in range(num)
    ]
    async with lab.database.acquire() as conn:
        await send(conn, made, sent)
    await keep_books(lab.database)


async def get(lab: Lab, made: dict[str, Any], what: str, **params: Any) -> dict[str, Any]:
    reply = await lab.client.get(f"{lab.path}/{made['id']}/{what}", params=params)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


async def test_results_have_intervals_verdicts_and_a_conclusion(lab: Lab) -> None:
    made, rows = await started(lab)
    before = await get(lab, made, "results")
    assert (before["conclusion"], before["comparisons"]) == ("No unit has taken part yet.", [])
    await run(lab, rows)
    found = await get(lab, made, "results")
    assert [(arm["name"], arm["units"]) for arm in found["arms"]] == [("control", 30), ("warm", 30)]
    (primary,) = [each for each in found["comparisons"] if each["role"] == "primary"]
    assert (primary["metric"], primary["arm"], primary["verdict"]) == ("completion_tokens", "warm", "better")
    assert primary["interval"]["low"] < primary["effect"] < primary["interval"]["high"] < 0
    assert -0.6 < primary["relative_interval"]["low"] < primary["relative_effect"] < 0
    assert "is better: that is proven" in primary["text"]
    assert primary["text"] in found["conclusion"] and found["conclusion"].endswith("the point is too large.")
    (first_token,) = [each for each in found["comparisons"] if each["metric"] == "ttft_ms"]
    assert first_token["control"]["mean"] == 20.0, "times are in milliseconds"
    (quantile,) = found["quantiles"]
    assert (quantile["metric"], quantile["verdict"]) == ("ttft_ms.p50", "unclear")
    assert {each["metric"]: each["verdict"] for each in found["guardrails"]}["error_rate"] == "unclear"
    assert (found["may_decide"], found["is_srm"]) == (True, False)
    await lab.do(made, "stop")
    await lab.do(made, "decide", arm="warm")
    assert (await get(lab, made, "results"))["conclusion"].endswith("warm was chosen.")

    only = await get(lab, made, "results", metric="cost_nanos")
    assert {each["metric"] for each in only["comparisons"]} == {"cost_nanos"}
    for param, value, status in (("metric", "smiles", 404), ("as_of", "yesterday", 400), ("as_of", "1", 404)):
        reply = await lab.client.get(f"{lab.path}/{made['id']}/results", params={param: value})
        assert (reply.status_code, reply.json()["error"]["param"]) == (status, param), reply.text


async def test_a_change_of_state_keeps_the_results_of_its_moment(lab: Lab) -> None:
    made, rows = await started(lab)
    await run(lab, rows)
    await lab.do(made, "stop")
    async with lab.database.acquire() as conn:
        await conn.execute("UPDATE experiment_looks SET looked_at = looked_at - interval '1 hour'")
    await run(lab, rows, num=200)
    past = await get(lab, made, "results", as_of=int(NOW.timestamp()) - 60)
    assert sum(arm["units"] for arm in past["arms"]) == 60
    assert sum(arm["units"] for arm in (await get(lab, made, "results"))["arms"]) > 60


async def test_days_and_exposures_add_up(lab: Lab) -> None:
    made, rows = await started(lab)
    assert (await get(lab, made, "exposures"))["units"] == 0
    assert (await get(lab, made, "timeline"))["data"] == []
    async with lab.database.acquire() as conn:
        for days in (1, 2):
            at = NOW.replace(hour=12) - datetime.timedelta(days=days)  # the window ends on the same day
            await send(conn, rows, [UnitRequest(unit(100 * days + n), arm=n % 2, at=at) for n in range(10)])
    await keep_books(lab.database)
    exposures = await get(lab, made, "exposures")
    days = [(NOW - datetime.timedelta(days=days)).date().isoformat() for days in (2, 1)]
    assert exposures["units"] == 20
    assert [(each["day"], each["arm"], each["epoch"], each["units"]) for each in exposures["data"]] == [
        (day, arm, 1, 5) for day in days for arm in ("control", "warm")
    ]
    timeline = (await get(lab, made, "timeline", metric="completion_tokens"))["data"]
    assert [sum(arm["units"] for arm in each["arms"]) for each in timeline[:2]] == [10, 20]
    assert {each["metric"] for day in timeline for each in day["comparisons"]} == {"completion_tokens"}


async def test_effects_are_shown_by_days_since_exposure(lab: Lab) -> None:
    made, rows = await started(lab, analysis=ANALYSIS | {"outcome_window_seconds": 2 * 86_400})
    assert (await get(lab, made, "ages"))["data"] == []
    async with lab.database.acquire() as conn:
        for age, saved in ((0, 40), (1, 0)):
            at = NOW - (72 - 24 * age) * HOUR
            tokens = [100 + n % 7 - (n % 2) * saved for n in range(80)]
            await send(conn, rows, [UnitRequest(unit(n), n % 2, at, tokens=tokens[n]) for n in range(80)])
    await keep_books(lab.database)
    found = {each["metric"]: each for each in (await get(lab, made, "ages"))["data"]}
    assert found.keys() == {"completion_tokens", "error_rate", "ttft_ms", "cost_nanos"}
    tokens_shown = found["completion_tokens"]
    assert (tokens_shown["arm"], tokens_shown["role"], tokens_shown["trend"]) == ("warm", "primary", "fading")
    assert "smaller on a unit's last day than on its first: that is proven" in tokens_shown["text"]
    assert [day["day"] for day in tokens_shown["days"]] == [0, 1]
    assert tokens_shown["days"][0]["interval"]["high"] < 0 < tokens_shown["days"][1]["interval"]["high"]
    assert found["ttft_ms"]["days"][0]["control"]["mean"] == 20.0, "times are in milliseconds"
    only = await get(lab, made, "ages", metric="cost_nanos")
    assert {each["metric"] for each in only["data"]} == {"cost_nanos"}
    reply = await lab.client.get(f"{lab.path}/{made['id']}/ages", params={"metric": "smiles"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (404, "metric")


async def test_health_says_what_is_wrong(lab: Lab) -> None:
    made, rows = await started(lab)
    healthy = await get(lab, made, "health")
    assert (healthy["status"], healthy["problems"]) == ("healthy", [])
    sent = [UnitRequest(unit(n), arm=int(n < 30), at=NOW - 3 * HOUR, is_delivered=n >= 30) for n in range(300)]
    async with lab.database.acquire() as conn:
        await send(conn, rows, [*sent, *(UnitRequest(unit(7), arm=1, at=NOW - 3 * HOUR) for _ in range(50))])
        await refuse(conn, rows, UnitRequest(unit(8), arm=1))
    await keep_books(lab.database)
    found = await get(lab, made, "health")
    assert (found["status"], found["is_srm"]) == ("broken", True)
    assert [(arm["name"], arm["units"], arm["expected_units"]) for arm in found["arms"]] == [
        ("control", 270, 150.0),
        ("warm", 30, 150.0),
    ]
    assert found["arms"][1]["compliance"] == 0.0
    assert [each["digest"] for each in found["busy_units"]] == [unit(7).hex()]
    said = " ".join(found["problems"])
    for words in ("not split as declared", "0% of the units in warm", "more than 1 % of the requests"):
        assert words in said, said
    assert "nothing here is to be believed" in (await get(lab, made, "results"))["conclusion"]


async def test_health_says_that_times_of_unequal_arms_are_not_compared(lab: Lab) -> None:
    arms = definition()["arms"]
    arms[0]["weight"] = 9 * arms[1]["weight"]
    made, rows = await started(lab, arms=arms)
    await run(lab, rows)
    (problem,) = (each for each in (await get(lab, made, "health"))["problems"] if "unequal" in each)
    assert "`ttft_ms` is compared over units that came under equal weights" in problem
    results = await get(lab, made, "results")
    assert {each["metric"] for each in results["comparisons"]} == {"completion_tokens", "cost_nanos", "error_rate"}


async def test_a_draft_has_nothing_to_show(lab: Lab) -> None:
    made = await lab.make()
    for what in ("results", "timeline", "ages", "health"):
        assert (await lab.client.get(f"{lab.path}/{made['id']}/{what}")).status_code == 404


async def test_a_preview_tells_the_arm_that_a_unit_gets(lab: Lab) -> None:
    made = await lab.make(coverage=5000)
    units = [f"user-{number}" for number in range(30)]

    async def arms() -> list[tuple[str, str]]:
        found = []
        for each in units:
            body = {"experiment_id": made["id"], "unit": each}
            reply = await lab.client.post(f"{lab.path}/preview", json=body)
            assert reply.status_code == 200, reply.text
            found.append((reply.json()["assignment"]["arm"], reply.json()["assignment"]["reason"]))
        return found

    before = await arms()
    assert {reason for _, reason in before} == {"split", "not_covered"}
    assert {arm for arm, reason in before if reason == "split"} == {"control", "warm"}
    await lab.do(made, "start")
    assert await arms() == before
    await lab.do(made, "pause")
    assert set(await arms()) == {("control", "paused")}
    async with lab.database.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM experiment_units") == 0, "nobody was exposed"


async def past_traffic(lab: Lab, *, days: int = 10, per_day: int = 40) -> None:
    """Write past requests that belong to no experiment."""
    organization_id = (await lab.client.get("")).json()["id"]
    async with lab.database.acquire() as conn:
        await write_usage_events(
            conn,
            [
                UsageEvent(
                    request_id=f"req_{day}_{number}",
                    attempt=0,
                    organization_id=organization_id,
                    project_id=lab.project_id,
                    api_key_id=f"key_{number % 8}",
                    endpoint="chat.completions",
                    model="tiny",
                    adapter_id=None,
                    adapter_version=None,
                    adapter_digest=None,
                    stream=False,
                    prompt_tokens=10,
                    cached_tokens=0,
                    completion_tokens=50 + (number * 37) % 41,
                    discarded_tokens=0,
                    finish_reason="stop",
                    queue_ms=1.0,
                    prefill_ms=2.0,
                    decode_ms=3.0,
                    ttft_ms=20.0 + number % 5,
                    latency_ms=60.0,
                    adapter_load_bytes=0,
                    created_at=NOW - datetime.timedelta(days=day, milliseconds=number),
                    finished_at=NOW,
                )
                for day in range(days)
                for number in range(per_day)
            ],
        )


async def test_a_preview_says_how_long_an_experiment_takes(lab: Lab) -> None:
    body = {"metric": "completion_tokens", "relative_effect": 0.05}
    nothing = (await lab.client.post(f"{lab.path}/preview", json=body)).json()
    assert (nothing["size"], nothing["why_no_size"]) == (None, "There is too little traffic of the past to learn from.")
    await past_traffic(lab)
    size = (await lab.client.post(f"{lab.path}/preview", json=body)).json()["size"]
    assert (size["past_units"], size["units"]) == ("request", 2 * size["units_per_arm"])
    assert 30 < size["units_per_day"] <= 40 and 50 < size["mean"] < 90
    assert size["days"] == -(-size["units"] // size["units_per_day"])
    assert f"takes {size['days']} days" in size["text"] and "units a day" in size["text"]
    half = (await lab.client.post(f"{lab.path}/preview", json=body | {"relative_effect": 0.025})).json()["size"]
    assert abs(half["units_per_arm"] / size["units_per_arm"] - 4) < 0.05
    narrow = (await lab.client.post(f"{lab.path}/preview", json=body | {"coverage": 1000})).json()["size"]
    assert abs(narrow["units_per_day"] / size["units_per_day"] - 0.1) < 1e-9
    assert "units a day, the 10% of all that take part, an experiment" in narrow["text"]
    assert "the 100%" not in size["text"] and "requests of the last 10 days, each counted as one unit." in size["text"]
    times = (await lab.client.post(f"{lab.path}/preview", json=body | {"metric": "ttft_ms"})).json()["size"]
    assert abs(times["mean"] - 22) < 0.1, "in milliseconds"
    made = await lab.make(coverage=1000)
    same = (await lab.client.post(f"{lab.path}/preview", json=body | {"experiment_id": made["id"]})).json()["size"]
    assert abs(same["units_per_day"] - narrow["units_per_day"]) < 1e-9
    for change, param in (
        ({"metric": "smiles"}, "metric"),
        ({"metric": "ttft_ms.p95"}, "metric"),
        ({"metric": "answer_rate"}, "metric"),
        ({"relative_effect": None}, "relative_effect"),
        ({"relative_effect": 0}, "relative_effect"),
        ({"unit": "ann"}, "experiment_id"),
        ({"past_days": 91}, "past_days"),
    ):
        assert await lab.refusal(f"{lab.path}/preview", body | change) == (400, param), change
    assert await lab.refusal(f"{lab.path}/preview", {}) == (400, "unit")
    assert await lab.refusal(f"{lab.path}/preview", body | {"experiment_id": "exp_x"}) == (404, "experiment_id")


async def test_a_preview_of_a_form_and_of_its_draft_are_one(lab: Lab) -> None:
    """The days of a preview are whole days until the last unit has come and its window is over, and at least the
    declared ones."""
    await past_traffic(lab)
    body = {"metric": "completion_tokens", "relative_effect": 0.05}
    bare = (await lab.client.post(f"{lab.path}/preview", json=body)).json()["size"]
    assert bare["min_days"] == 0 and "Nothing is to be decided" not in bare["text"]
    arrival = bare["units"] / bare["units_per_day"]
    for window_s, min_days in ((300, 0), (7 * 86_400, 7), (2 * 86_400, 365)):
        times = {"outcome_window_seconds": window_s, "min_days": min_days}
        made = await lab.make(name=f"e-{min_days}", model=f"bot-{min_days}", coverage=10_000, analysis=times)
        of_draft = (await lab.client.post(f"{lab.path}/preview", json=body | {"experiment_id": made["id"]})).json()
        form = times | {"alpha": 0.05, "num_arms": 2, "num_primary": 1, "coverage": 10_000}
        of_form = (await lab.client.post(f"{lab.path}/preview", json=body | form)).json()
        assert of_form == of_draft
        size = of_form["size"]
        assert size["days"] == max(min_days, math.ceil(arrival + window_s / 86_400))
        assert f"takes {size['days']} days" in size["text"] and duration(window_s) in size["text"]
        assert (f"before {days_declared(min_days)} are over" in size["text"]) == (min_days > 0)
    quarter = (await lab.client.post(f"{lab.path}/preview", json=body | {"coverage": 2_500})).json()["size"]
    assert "units a day, the 25% of all that take part, an experiment" in quarter["text"]
    assert "take part" not in bare["text"] and quarter["units_per_day"] == bare["units_per_day"] / 4
    two = (await lab.client.post(f"{lab.path}/preview", json=body | {"num_primary": 2})).json()["size"]
    assert two["units"] > bare["units"], "two metrics share the false alarms"
    for change, param in (({"num_primary": 6}, "num_primary"), ({"min_days": -1}, "min_days")):
        assert await lab.refusal(f"{lab.path}/preview", body | change) == (400, param)
    short = {"outcome_window_seconds": 9}
    assert await lab.refusal(f"{lab.path}/preview", body | short) == (400, "outcome_window_seconds")


async def test_a_calibration_counts_false_alarms_on_past_traffic(lab: Lab) -> None:
    await past_traffic(lab)
    body = {"metric": "completion_tokens", "runs": 100, "tightest_at": 400}
    found = (await lab.client.post(f"{lab.path}/calibrate", json=body)).json()
    assert (found["runs"], found["num_units"], found["past_units"]) == (100, 400, "request")
    assert found["false_rate"] <= 0.05 < found["false_rate_fixed"]
    assert [each["days"] for each in found["horizons"]] == [7, 14, 28]
    assert "no arm did anything" in found["text"]
    by_key = (await lab.client.post(f"{lab.path}/calibrate", json=body | {"past_units": "api_key"})).json()
    assert by_key["num_units"] == 8
    assert await lab.refusal(f"{lab.path}/calibrate", body | {"runs": 2001}) == (400, "runs")


async def test_a_project_has_one_calibration_at_a_time(lab: Lab) -> None:
    await past_traffic(lab)
    body = {"metric": "completion_tokens", "runs": 300, "tightest_at": 400}
    replies = await asyncio.gather(*(lab.client.post(f"{lab.path}/calibrate", json=body) for _ in range(4)))
    assert sorted(reply.status_code for reply in replies) == [200, 503, 503, 503]
    assert {reply.headers.get("retry-after") for reply in replies if reply.status_code == 503} == {"10"}
    assert (await lab.client.post(f"{lab.path}/calibrate", json=body | {"runs": 1})).status_code == 200


_STRANGERS = """
    INSERT INTO experiment_requests (
        request_id, project_id, experiment_id, digest, epoch, arm, is_delivered, created_at)
    SELECT 'req_' || number, $1, $2, decode(md5(number::text), 'hex'), 1, 0, true, now()
    FROM generate_series(1, 20000) AS s (number)
"""


async def test_a_preview_reads_no_requests_of_other_projects(lab: Lab) -> None:
    async with lab.database.acquire() as conn:
        stranger = await make_experiment(conn, project="globex")
        await conn.execute(_STRANGERS, stranger.project_id, stranger.id)
        await conn.execute("ANALYZE experiment_requests, experiments")
        plan = await conn.fetch(f"EXPLAIN {past._HAS_UNITS}", lab.project_id, NOW - datetime.timedelta(days=28))
        assert "Seq Scan on experiment_requests" not in "\n".join(row[0] for row in plan)
        assert not await past.has_units(conn, lab.project_id, NOW - datetime.timedelta(days=28))
        assert await past.has_units(conn, stranger.project_id, NOW - datetime.timedelta(days=28))


async def test_a_preview_learns_from_the_units_of_earlier_experiments(lab: Lab) -> None:
    _, rows = await started(lab)
    await run(lab, rows)
    await run(lab, rows, num=10)
    body = {"metric": "completion_tokens", "relative_effect": 0.1}
    size = (await lab.client.post(f"{lab.path}/preview", json=body)).json()["size"]
    assert (size["past_units"], size["units_per_day"]) == ("unit", 60.0)


async def test_a_preview_of_a_feedback_metric_learns_from_earlier_votes(lab: Lab) -> None:
    body = {"metric": "stars", "relative_effect": 0.1}
    stars = {"name": "stars", "type": "number", "goal": "increase", "kind": "ratio"}
    assert await lab.refusal(f"{lab.path}/preview", body) == (400, "metric"), "there is no such metric yet"
    for own in (stars, stars | {"name": "likes", "kind": "mean"}):
        assert (await lab.client.post(f"{lab.project}/feedback_metrics", json=own)).status_code == 200
    unknown = (await lab.client.post(f"{lab.path}/preview", json=body)).json()
    assert unknown["size"] is None, "a right question, to which the past has no answer"
    assert unknown["why_no_size"] == "There is too little feedback of the past to learn from."
    _, rows = await started(lab)
    async with lab.database.acquire() as conn:
        at = NOW - datetime.timedelta(days=3)
        ids = await send(conn, rows, [UnitRequest(unit(n // 2), n // 2 % 2, at) for n in range(80)])
        for number, request_id in enumerate(ids):  # two requests of each of 40 units, of which 30 vote: 2 and 4 stars
            if number < 60:
                value = (2 + number % 4 // 2 * 2) * 1_000_000
                await vote(conn, rows, value, request_id=request_id, metric="stars", at=at)
                await vote(conn, rows, value, request_id=request_id, metric="likes", at=at)
        await vote(conn, rows, 3_000_000, digest=unit(500), metric="stars", at=at)
        withdrawn = await vote(conn, rows, 5_000_000, digest=unit(501), metric="stars", at=at)
        await withdraw(conn, rows, withdrawn)
        long_ago = NOW - datetime.timedelta(days=200)
        await vote(conn, rows, 5_000_000, digest=unit(502), metric="stars", at=long_ago)
    size = (await lab.client.post(f"{lab.path}/preview", json=body)).json()["size"]
    assert (size["past_units"], size["units_per_day"]) == ("unit", 31)
    assert abs(size["mean"] - 3) < 1e-9, "in stars: the sum of votes by their number"
    assert abs(size["deviation"] - 1) < 0.05
    assert "At your 31 units with feedback a day" in size["text"]
    by_request = (await lab.client.post(f"{lab.path}/preview", json=body | {"past_units": "request"})).json()["size"]
    assert by_request["units_per_day"] == 60, "votes about units alone are about no request"
    sums = (await lab.client.post(f"{lab.path}/preview", json=body | {"metric": "likes"})).json()["size"]
    assert (sums["units_per_day"], round(sums["mean"], 9)) == (30, 6), "the sum of a unit's votes"
    found = (await lab.client.post(f"{lab.path}/calibrate", json={"metric": "stars", "runs": 20})).json()
    assert (found["num_units"], found["past_units"], round(found["mean"], 9)) == (31, "unit", 3)
    for path in ("preview", "calibrate"):
        wrong = {"metric": "stars", "past_units": "api_key"} | ({"relative_effect": 0.1} if path == "preview" else {})
        assert await lab.refusal(f"{lab.path}/{path}", wrong) == (400, "past_units")
        assert await lab.refusal(f"{lab.path}/{path}", wrong | {"metric": "stars.p95"}) == (400, "metric")


async def test_a_unit_is_forgotten_and_not_even_the_audit_log_names_it(
    lab: Lab, server: AdminServer, operator: httpx.AsyncClient
) -> None:
    made, rows = await started(lab)
    digest = unit_digest(await server.services.unit_keys.key(lab.project_id), "ann@example.com")
    async with lab.database.acquire() as conn:
        await send(conn, rows, [UnitRequest(each, at=NOW - 3 * HOUR) for each in (digest, unit(1))])
    await keep_books(lab.database)
    reply = await lab.client.post(f"{lab.project}/experiment_units/forget", json={"unit": "ann@example.com"})
    assert (reply.status_code, reply.json()["experiments"]) == (200, 1)
    assert sum(arm["units"] for arm in (await get(lab, made, "results"))["arms"]) == 1
    async with lab.database.acquire() as conn:
        left = "SELECT count(*) FROM experiment_requests WHERE digest = $1"
        assert await conn.fetchval(left, digest) == 0
    logs = await operator.get("/audit_logs")
    assert "unit.forgotten" in logs.text and "ann@example.com" not in logs.text and digest.hex() not in logs.text


_OF_PROJECT = """
    SELECT (SELECT count(*) FROM experiments WHERE project_id = $1)
         + (SELECT count(*) FROM experiment_layers WHERE project_id = $1)
         + (SELECT count(*) FROM experiment_holdouts WHERE project_id = $1)
         + (SELECT count(*) FROM experiment_keys WHERE project_id = $1)
         + (SELECT count(*) FROM experiment_requests WHERE project_id = $1)
         + (SELECT count(*) FROM feedback_metrics WHERE project_id = $1)
         + (SELECT count(*) FROM feedback WHERE project_id = $1)
         + (SELECT count(*) FROM experiment_units) + (SELECT count(*) FROM experiment_days)
         + (SELECT count(*) FROM experiment_sums) + (SELECT count(*) FROM experiment_arms)
         + (SELECT count(*) FROM experiment_segments) + (SELECT count(*) FROM experiment_segment_sums)
         + (SELECT count(*) FROM experiment_totals) + (SELECT count(*) FROM experiment_time_totals)
         + (SELECT count(*) FROM experiment_ages) + (SELECT count(*) FROM experiment_times)
         + (SELECT count(*) FROM experiment_looks) + (SELECT count(*) FROM experiment_events)
"""


async def test_a_purged_project_leaves_nothing_of_its_experiments(lab: Lab, server: AdminServer) -> None:
    await lab.client.post(f"{lab.project}/holdouts", json={"name": "quarter", "size": 500})
    await lab.client.post(
        f"{lab.project}/feedback_metrics", json={"name": "thumbs", "type": "boolean", "goal": "increase"}
    )
    await server.services.unit_keys.key(lab.project_id)
    made, rows = await started(lab)
    await run(lab, rows)
    await get(lab, made, "results")
    async with lab.database.transaction() as conn:
        await send(conn, rows, [UnitRequest(unit(1000), at=NOW - 3 * HOUR)])  # an event that waits
        assert await conn.fetchval(_OF_PROJECT, lab.project_id) > 100
        num_ledger = await conn.fetchval("SELECT count(*) FROM ledger")
        await purge_project(conn, lab.project_id)
        assert await conn.fetchval(_OF_PROJECT, lab.project_id) == 0
        assert await conn.fetchval("SELECT count(*) FROM ledger") == num_ledger
    await keep_books(lab.database)
