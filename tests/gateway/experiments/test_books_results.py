"""Results, health and looks are read from sums alone, and guardrails pause an experiment by the same sums."""

from __future__ import annotations

import asyncio
import datetime
import random
import time

import msgspec
import pytest

from gateway.db.experiments.experiments import set_state
from gateway.db.experiments.looks import list_looks
from gateway.db.pool import Database
from gateway.domain.errors import NotFound
from gateway.domain.experiments.definition import Arm, Experiment, Guardrail, Metrics, Primary, Target
from gateway.domain.experiments.results import Results
from gateway.experiments.results import read_look, read_results, read_timeline
from tests.gateway.experiments.books_rows import (
    DEFINITION,
    NOW,
    WINDOW_S,
    UnitRequest,
    keep_books,
    make_experiment,
    send,
    unit,
    vote,
)
from tests.patience import PATIENCE_S

LONG_AGO = NOW - datetime.timedelta(seconds=WINDOW_S, days=2)
WIDE = msgspec.structs.replace(
    DEFINITION,
    metrics=Metrics(
        (Primary("paid", "increase"), Primary("completion_tokens", "decrease")),
        (Guardrail("error_rate", "pause"), Guardrail("ttft_ms.p50", margin=0.1)),
        ("queue_ms", "answer_rate"),
    ),
)


async def test_a_look_shows_every_metric_of_the_definition_and_is_kept(database: Database) -> None:
    rng = random.Random(1)
    async with database.acquire() as conn:
        made = await make_experiment(conn, WIDE)
        sent = [UnitRequest(unit(n), n % 2, LONG_AGO, tokens=rng.randrange(20) + 5 * (n % 2)) for n in range(120)]
        ids = await send(conn, made, sent)
        for number, request_id in enumerate(ids[:60]):
            await vote(conn, made, number % 3, request_id=request_id, at=LONG_AGO)
        await keep_books(database)
        results = await read_results(conn, made)
        assert [(arm.name, arm.units, arm.compliance) for arm in results.arms] == [("control", 60, 1), ("warm", 60, 1)]
        shown = {each.metric for each in results.comparisons} | {each.metric for each in results.quantiles}
        assert shown == {"paid", "completion_tokens", "error_rate", "ttft_ms.p50", "queue_ms", "answer_rate"}
        tokens = next(each for each in results.comparisons if each.metric == "completion_tokens")
        means = [sum(each.tokens for each in sent if each.arm == arm) / 60 for arm in (0, 1)]
        assert (tokens.control.mean, tokens.treatment.mean) == pytest.approx(means)
        alone = await read_results(conn, made, metric="completion_tokens")
        assert alone.comparisons == (tokens,), "at the level that all primary metrics share"
        with pytest.raises(NotFound):
            await read_results(conn, made, metric="cost_nanos")
        (kept,) = await list_looks(conn, made.id, LONG_AGO)
        assert (kept.results, kept.days, kept.version) == (results, 10, 1)
        assert await read_look(conn, made, as_of=datetime.datetime.now(datetime.UTC)) == kept
        with pytest.raises(NotFound):
            await read_look(conn, made, as_of=LONG_AGO)


async def test_the_last_day_of_the_timeline_is_what_results_show(database: Database) -> None:
    async with database.acquire() as conn:
        made = await make_experiment(conn, WIDE)
        for days in range(5):
            at = LONG_AGO - datetime.timedelta(days=days)
            await send(conn, made, [UnitRequest(unit(100 * days + n), n % 2, at, tokens=n) for n in range(8)])
        await keep_books(database)
        days_shown = await read_timeline(database, made)
        assert len(days_shown) == 6, "five days of first requests, on the next of which windows end"
        last = days_shown[-1][1]
        assert last == await read_results(conn, made)
        assert days_shown == sorted(days_shown, key=lambda each: each[0])


_YEARS = """
    INSERT INTO experiment_sums (experiment_id, day, epoch, arm, metric, n, y, yy, x, xx, xy, d, dd, yd)
    SELECT $1, date '2020-01-01' + day, 1, arm, metric, 5, 10, 30, 0, 0, 0, 5, 5, 10
    FROM generate_series(1, $2::integer) AS s (day), generate_series(0, 1) AS a (arm),
         unnest(ARRAY['paid', 'completion_tokens', 'error_rate', 'queue_ms', 'answer_rate']) AS m (metric)
"""


def _verdicts_of(results: Results) -> dict[tuple[str, int], str]:
    return {(each.metric, each.arm): each.verdict for each in results.guardrails}


THREE = Experiment(
    "three",
    "three",
    DEFINITION.unit,
    tuple(Arm(name, 1, Target("tiny")) for name in ("a", "b", "c")),
    DEFINITION.metrics,
    analysis=DEFINITION.analysis,
)


async def test_harm_pauses_an_experiment_within_600_units(database: Database) -> None:
    rng = random.Random(7)
    async with database.acquire() as conn:
        made = await make_experiment(conn)
        await conn.execute(
            "INSERT INTO webhooks (id, organization_id, url, secret) VALUES ('wh', $1, 'https://example.com', '')",
            made.organization_id,
        )
        bystander = await make_experiment(conn, THREE)
        state, num = "running", 0
        while state == "running" and num < 600:
            sent = []
            for number in range(num, num + 20):
                arm = rng.randrange(2)
                has_failed = rng.random() < (0.10 if arm else 0.01)
                sent.append(UnitRequest(unit(number), arm, finish_reason="error" if has_failed else "stop"))
            num += 20
            await send(conn, made, sent)
            await send(conn, bystander, [msgspec.structs.replace(each, finish_reason="stop") for each in sent])
            await keep_books(database)
            state, why = await conn.fetchrow("SELECT state, why FROM experiments WHERE id = $1", made.id)
        assert (state, num <= 600) == ("paused", True)
        found = msgspec.json.decode(why)
        assert (found["metric"], found["arm"]) == ("error_rate", "warm") and ", against 0.0" in found["text"]
        row = await conn.fetchrow("SELECT actor_kind, actor_id, event, object_id FROM audit_log ORDER BY sequence DESC")
        assert row is not None and tuple(row) == ("system", "guardrail", "experiment.paused", made.id)
        body = msgspec.json.decode(await conn.fetchval("SELECT body FROM webhook_deliveries"))
        assert (body["type"], body["data"]["experiment_id"]) == ("experiment.paused", made.id)
        (look,) = await list_looks(conn, made.id, LONG_AGO)
        assert _verdicts_of(look.results)["error_rate", 1] == "harmed"
        await set_state(conn, made.id, "running")
        await send(conn, made, [UnitRequest(unit(num + n), 1, finish_reason="error") for n in range(20)])
        await keep_books(database)
        assert await conn.fetchval("SELECT state FROM experiments WHERE id = $1", made.id) == "running", (
            "a person's will"
        )
        assert await conn.fetchval("SELECT state FROM experiments WHERE id = $1", bystander.id) == "running"


_SET_UNITS = "UPDATE experiment_days SET num_units = $2 WHERE experiment_id = $1 AND arm = 0"
_SET_SUMS = "UPDATE experiment_totals SET n = $2 WHERE experiment_id = $1 AND arm = 0 AND metric = 'error_rate'"


async def test_a_look_is_of_one_moment_while_the_sums_change(database: Database) -> None:
    async with database.acquire() as conn:
        made = await make_experiment(conn)
        await send(conn, made, [UnitRequest(unit(n), n % 2, LONG_AGO) for n in range(40)])
    await keep_books(database)
    is_over = False

    async def change() -> None:
        """Change units and sums together, as the bookkeeper does."""
        number = 20
        while not is_over:
            number += 1
            async with database.transaction() as conn:
                for statement in (_SET_UNITS, _SET_SUMS):
                    await conn.execute(statement, made.id, number)

    changing = asyncio.create_task(change())
    seen, num_looks, deadline_s = set(), 0, time.monotonic() + PATIENCE_S
    async with database.acquire() as conn:
        while (num_looks < 60 or len(seen) <= 5) and time.monotonic() < deadline_s:
            num_looks += 1
            results = await read_results(conn, made)
            (errors,) = [each for each in results.comparisons if each.metric == "error_rate"]
            assert errors.control.n == results.arms[0].units
            seen.add(errors.control.n)
    is_over = True
    await changing
    assert len(seen) > 5, "the sums changed meanwhile"


async def test_years_of_days_do_not_hold_up_the_gateway(database: Database) -> None:
    async with database.acquire() as conn:
        made = await make_experiment(conn, WIDE)
        await conn.execute(_YEARS, made.id, 1_000)
    longest_s, is_over = 0.0, False

    async def watch() -> None:
        """Measure how long the loop's thread computes before it lets other tasks go on, whatever else the machine
        does."""
        nonlocal longest_s
        while not is_over:
            began_s = time.thread_time()
            await asyncio.sleep(0)
            longest_s = max(longest_s, time.thread_time() - began_s)

    watching = asyncio.create_task(watch())
    began_s = time.process_time()
    days = await read_timeline(database, made)
    took_s = time.process_time() - began_s
    is_over = True
    await watching
    assert len(days) == 1_000
    assert longest_s < took_s / 2, "one step of the loop is far shorter than the whole work"


async def test_a_page_that_stays_open_keeps_no_look_twice(database: Database) -> None:
    async with database.acquire() as conn:
        made = await make_experiment(conn)
        for num_units in (4, 6):
            await send(conn, made, [UnitRequest(unit(n), n % 2, LONG_AGO) for n in range(num_units)])
            await keep_books(database)
            for _ in range(5):
                await read_results(conn, made)
                await conn.execute("UPDATE experiment_looks SET looked_at = looked_at - interval '2 minutes'")
        looks = await list_looks(conn, made.id, LONG_AGO)
    assert [sum(arm.units for arm in look.results.arms) for look in looks] == [4, 6]
