"""A running experiment of one of the house's tenants: two weeks of units, drawn with a seed, as sums in the tables."""

from __future__ import annotations

import random
import time
from typing import Any

import asyncpg
import httpx

from gateway.db.experiments.sums.adding import add_total
from gateway.db.experiments.sums.total import Total
from gateway.domain.experiments.feedback.judged import judge_key
from gateway.domain.experiments.units import NO_ROWS, Counts, DayOutcomes, FirstTime, UnitState, rows_of, table_changes
from tests.gateway.live import BASE

NAME, MODEL, METRIC = "support-tone", "support", "thumbs_up"
DAYS, UNITS_A_DAY, WINDOW_DAYS = 14, 300, 2
LIKED = (0.58, 0.67)
"""The share of votes that are positive (a thumb up), by arm."""
SEGMENTS = tuple(("key_1", "/v1/chat/completions", stream, "default", "gateway-1") for stream in ("false", "true"))
DAY_US = 86_400_000_000
_BEGAN = "UPDATE experiments SET started_at = now() - $2::int * interval '1 day' - interval '1 hour' WHERE id = $1"
_BEGAN_LATELY = "UPDATE experiments SET started_at = now() - $2::int * interval '1 minute' WHERE id = $1"
_REASON = "INSERT INTO experiment_reasons VALUES ($1, (now() AT TIME ZONE 'UTC')::date, $2, $3)"


def make_experiment(
    client: httpx.Client,
    project_id: str,
    *,
    name: str,
    arms: tuple[str, str],
    analysis: dict[str, Any] | None = None,
    layer: str = "default",
) -> str:
    """Start an experiment over HTTP that is judged by cost and pauses itself at errors; return its id.

    layer: the name of the experiment's layer, which is made unless it is the default one. analysis: the terms of
    analysis; None: the usual ones.
    """
    if layer != "default":
        client.post(f"/projects/{project_id}/experiment_layers", json={"name": layer}).raise_for_status()
    definition = {
        "name": name,
        "model": name,
        "layer": layer,
        "unit": {"from": "user"},
        "arms": [
            {"name": each, "weight": 1, "target": {"model": model}}
            for each, model in zip(("control", "treatment"), arms, strict=True)
        ],
        "metrics": {
            "primary": [{"metric": "cost_nanos", "goal": "decrease"}],
            "guardrails": [{"metric": "error_rate", "action": "pause"}],
        },
        "analysis": analysis or {},
    }
    return _start(client, f"/projects/{project_id}/experiments", definition)


def _start(client: httpx.Client, path: str, definition: dict[str, Any]) -> str:
    made = client.post(path, json=definition)
    assert made.status_code == 200, made.text
    experiment_id = str(made.json()["id"])
    started = client.post(f"{path}/{experiment_id}/start", json={})
    assert started.status_code == 200, started.text
    return experiment_id


def start_experiment(client: httpx.Client, project_id: str) -> str:
    """Make an experiment over HTTP and start it; return its id."""
    path = f"/projects/{project_id}"
    own = {"name": METRIC, "type": "boolean", "goal": "increase", "kind": "ratio", "description": "Below each answer"}
    guardrails = [{"metric": "error_rate", "action": "pause"}, {"metric": "ttft_ms.p95", "margin": 0.1}]
    definition = {
        "name": NAME,
        "model": MODEL,
        "unit": {"from": "user"},
        "arms": [
            {"name": "control", "weight": 5000, "target": {"model": f"{BASE}:support-bot@1"}},
            {"name": "warm", "weight": 5000, "target": {"model": f"{BASE}:pirate", "defaults": {"temperature": 0.2}}},
        ],
        "metrics": {
            "primary": [{"metric": METRIC, "goal": "increase"}],
            "guardrails": guardrails,
            "secondary": ["cost_nanos", "answer_rate"],
        },
        "analysis": {"outcome_window_seconds": WINDOW_DAYS * 86_400, "tightest_at": 4000},
    }
    client.post(f"{path}/feedback_metrics", json=own).raise_for_status()
    return _start(client, f"{path}/experiments", definition)


async def write_units(conn: asyncpg.Connection, experiment_id: str) -> None:
    """Write two weeks of units for an experiment, as if it had started two weeks ago."""
    drawn, judge, total, window = random.Random(14), random.Random(15), Total(), WINDOW_DAYS * DAY_US
    now = int(time.time() * 1e6)
    for number in range(DAYS * UNITS_A_DAY):
        at, arm = now - number * DAY_US // UNITS_A_DAY, drawn.randrange(2)
        requests, ttft_us = drawn.choice((1, 1, 2, 3, 5)), int(drawn.lognormvariate(11.8, 0.4))
        votes = int(drawn.random() < 0.6)
        counts = Counts(
            num_requests=requests,
            num_errors=int(drawn.random() < 0.012),
            cost_nanos=int(requests * drawn.lognormvariate(11.5, 0.6)),
            ttft_us=requests * ttft_us,
            num_ttft=requests,
            num_votes=votes,
        )
        liked = {METRIC: (int(drawn.random() < LIKED[arm]), 1)} if votes else {}
        firsts = {"ttft_ms": FirstTime(at, "req", 0, ttft_us)}
        by_judge = {judge_key(METRIC): (int(judge.random() < LIKED[arm] + 0.2), 1)}
        later = Counts(num_requests=requests // 2, cost_nanos=counts.cost_nanos * (requests // 2) // requests)
        less = Counts(num_requests=-later.num_requests, cost_nanos=-later.cost_nanos)
        days = {0: DayOutcomes(counts + less, liked)} | ({1: DayOutcomes(later)} if requests > 1 else {})
        is_whole, segments = arm == 0 or drawn.random() < 0.97, SEGMENTS[drawn.random() < 0.3]
        state = UnitState(at, "req", 1, arm, is_whole, counts, liked | by_judge, firsts, days, segments=segments)
        rows = rows_of(state, window, {METRIC: "ratio"}, is_closed=at + window < now)
        total.add(experiment_id, table_changes(NO_ROWS, rows))
    async with conn.transaction():
        await add_total(conn, total)
        await conn.execute(_BEGAN, experiment_id, DAYS)
        for reason, num in (("no_unit", 312), ("forced", 4)):
            await conn.execute(_REASON, experiment_id, reason, num)


async def write_errors(
    conn: asyncpg.Connection, experiment_id: str, *, control: int, treatment: int, num_units: int
) -> None:
    """Write `num_units` units for each arm, some of which had an error, within a transaction of the caller's.

    control, treatment: the number of units with an error in each arm.
    """
    total, at = Total(), int(time.time() * 1e6)
    for arm, failed in enumerate((control, treatment)):
        for number in range(num_units):
            counts = Counts(num_requests=1, num_errors=int(number < failed))
            state = UnitState(at, "req", 1, arm, True, counts, {}, {})
            total.add(experiment_id, table_changes(NO_ROWS, rows_of(state, DAY_US, {}, is_closed=False)))
    await add_total(conn, total)


async def write_first_minutes(
    conn: asyncpg.Connection, experiment_id: str, *, minutes: int, window_s: int, num_units: int
) -> None:
    """Write `num_units` units for each arm of an experiment that started some minutes ago, in the caller's transaction.

    The treatment's units are cheaper. window_s: the outcome window in seconds.
    """
    total, now = Total(), int(time.time() * 1e6)
    for arm in range(2):
        for number in range(num_units):
            at = now - (window_s + 60) * 1_000_000
            counts = Counts(num_requests=1, cost_nanos=(1_000_000, 400_000)[arm] + number * 1_000)
            state = UnitState(at, "req", 1, arm, True, counts, {}, {}, {})
            total.add(experiment_id, table_changes(NO_ROWS, rows_of(state, window_s * 1_000_000, {}, is_closed=True)))
    await add_total(conn, total)
    await conn.execute(_BEGAN_LATELY, experiment_id, minutes)
