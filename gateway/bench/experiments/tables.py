"""`python -m gateway.bench.experiments.tables`: what a large experiment costs its tables, on a PostgreSQL of its own.

Fills the ledger with the requests of one experiment, lets the bookkeeper count them, and then measures: events counted
in a second, how far sums are behind under a steady load, looks at results and health, and a recount of all rows, which
has to equal the tables in every integer. With `--from-states` units and sums are written without a ledger, as the
bookkeeper would have written them, in a tenth of the time. A program, never a timed test.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from hashlib import md5
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from gateway.bench.metering import database as own_database
from gateway.db.experiments.events import count_waiting
from gateway.db.experiments.sums.adding import add_total
from gateway.db.experiments.sums.total import Total
from gateway.db.experiments.units import UnitWrite, write_units
from gateway.db.organization.organizations import ensure_organization
from gateway.db.organization.projects import create_project
from gateway.db.pool import Database
from gateway.domain.experiments.allocation import first_split
from gateway.domain.experiments.assignment import NUM_BUCKETS
from gateway.domain.experiments.definition import (
    Analysis,
    Arm,
    Experiment,
    Guardrail,
    Metrics,
    Primary,
    Target,
    UnitSource,
)
from gateway.domain.experiments.metrics import METRICS
from gateway.domain.experiments.units import DAY_US, NO_ROWS, Counts, FirstTime, UnitState, rows_of, table_changes
from gateway.experiments.bookkeeper import ExperimentBookkeeper
from gateway.experiments.recount import verify
from gateway.experiments.results import read_health, read_results, read_timeline

WINDOW_S = 86_400
ANALYZE_TIMEOUT_S = 600.0
DEFINITION = Experiment(
    "bench",
    "bench",
    UnitSource("user"),
    tuple(Arm(name, 1, Target("bench")) for name in ("a", "b", "c")),
    Metrics(
        (Primary("paid", "increase"),),
        (Guardrail("error_rate", "pause"), Guardrail("ttft_ms.p95", margin=0.1)),
        tuple(name for name in METRICS if name != "error_rate"),
    ),
    analysis=Analysis(outcome_window_seconds=WINDOW_S),
)


class Row(msgspec.Struct, frozen=True):
    """The experiment that is measured."""

    id: str
    project_id: str


_LAYER = "INSERT INTO experiment_layers (project_id, name, seed) VALUES ($1, 'default', $2)"
_METRIC = """
    INSERT INTO feedback_metrics (project_id, name, type, goal, kind) VALUES ($1, 'paid', 'number', 'increase', 'mean')
"""
_EXPERIMENT = """
    INSERT INTO experiments (id, project_id, name, model, state, definition, layer, seed, slots, tables, started_at)
    VALUES ('exp_bench', $1, 'bench', 'bench', 'running', $2, 'default', $3, $4, $5, now() - make_interval(days => $6))
"""
_DAYS = "SELECT ensure_ledger_day((now() AT TIME ZONE 'UTC')::date - day) FROM generate_series(0, $1::integer) AS day"

# Units from $3 to $4 with $5 requests each, the first within the day that began $6 days ago, then one each hour.
_REQUESTS = """
    INSERT INTO experiment_requests (
        request_id, project_id, experiment_id, digest, epoch, arm, is_delivered, created_at, api_key_id, endpoint,
        stream, service_tier, gateway)
    SELECT 'req_' || u || '_' || k, $1, $2, decode(md5(u::text), 'hex'), 1, u % 3, true,
           now() - make_interval(days => $6) + make_interval(secs => u % 80000) + make_interval(hours => k),
           'key_' || u % 7, 'chat.completions', u % 2 = 0, 'default', 'gateway_' || u % 3
    FROM generate_series($3::integer, $4::integer) AS u, generate_series(0, $5::integer - 1) AS k
"""
_LEDGER = """
    INSERT INTO ledger (
        request_id, attempt, revision, kind, organization_id, project_id, api_key_id, endpoint, model, adapter_class,
        service_tier, stream, prompt_tokens, cached_tokens, completion_tokens, discarded_tokens, finish_reason,
        queue_ms, prefill_ms, decode_ms, ttft_ms, latency_ms, adapter_load_bytes, created_at, finished_at, period,
        input_cost_nanos, cached_cost_nanos, output_cost_nanos, cost_nanos, list_cost_nanos, experiment_id,
        experiment_version, experiment_arm, experiment_epoch, experiment_delivered)
    SELECT 'req_' || u || '_' || k, 0, 0, 'usage', $7, $1, 'key', 'chat.completions', 'bench', 'none', 'default', true,
           100, 0, 1 + (random() * 200)::integer, 0, CASE WHEN random() < 0.01 THEN 'error' ELSE 'stop' END,
           random() * 5, 5, 20 + random() * 100, t.ttft_ms, t.ttft_ms + 500 * random(), 0, a.at, a.at,
           month_of(a.at), 0, 0, t.cost, t.cost, t.cost, $2, 1, u % 3, 1, true
    FROM generate_series($3::integer, $4::integer) AS u, generate_series(0, $5::integer - 1) AS k,
        LATERAL (SELECT now() - make_interval(days => $6) + make_interval(secs => u % 80000)
                        + make_interval(hours => k) AS at) a,
        LATERAL (SELECT 50 * exp(0.5 * sqrt(-2 * ln(1 - random())) * cos(6.283 * random()) + u * 0) AS ttft_ms,
                        (random() * 1000000)::bigint + k AS cost) t
"""
_VOTES = """
    WITH cast_now AS (
        INSERT INTO feedback (id, project_id, request_id, metric, source, value, fingerprint, occurred_at)
        SELECT 'fb_' || u, $1, 'req_' || u || '_0', 'paid', 'user', u % 1000, '', now() - make_interval(days => $5)
               + make_interval(secs => u % 80000 + 60)
        FROM generate_series($3::integer, $4::integer, 10) AS u
        RETURNING id, occurred_at
    )
    INSERT INTO experiment_events (experiment_id, kind, feedback_id, created_at)
    SELECT $2, 'feedback', id, occurred_at FROM cast_now
"""
_ANALYZE = "ANALYZE"
UNITS_AT_ONCE = 10_000
_SLICE = 2_000
"""Units that one transaction writes while tables are filled, so that no statement takes long."""


async def fill(database: Database, args: argparse.Namespace) -> Row:
    """Write the experiment and its requests; a tenth of the units vote. Return the experiment's row."""
    split = first_split(b"s" * 32, b"l" * 32, range(NUM_BUCKETS), (1, 1, 1))
    async with database.acquire() as conn:
        organization = await ensure_organization(conn, "bench")
        project = await create_project(conn, organization.id, "bench")
        assert project is not None
        text = msgspec.json.encode(DEFINITION).decode()
        await conn.execute(_LAYER, project.id, split.layer_seed)
        await conn.execute(_METRIC, project.id)
        tables = list(split.tables)
        await conn.execute(_EXPERIMENT, project.id, text, split.seed, split.slots, tables, args.days)
        await conn.execute(_DAYS, args.days)
    per_day = args.units // args.days
    for day in range(args.days):
        for first in range(day * per_day, (day + 1) * per_day, _SLICE):
            last = min(first + _SLICE, (day + 1) * per_day) - 1
            await write_requests(
                database, Row("exp_bench", project.id), organization.id, (first, last), args, args.days - day
            )
    async with database.acquire() as conn:
        await conn.execute(_ANALYZE, timeout=ANALYZE_TIMEOUT_S)
    return Row("exp_bench", project.id)


async def fill_from_states(database: Database, row: Row, args: argparse.Namespace) -> None:
    """Write units with all their requests counted, and their sums, as a recount of such requests would."""
    rng, total, writes = random.Random(1), Total(), []  # noqa: S311 - a seeded bench
    window_us, num, now_us = WINDOW_S * 1_000_000, args.exposures // args.units, int(time.time() * 1e6)
    for number in range(args.units):
        first_us = now_us - (args.days - number * args.days // args.units) * DAY_US + number % 80_000 * 1_000_000
        state = _state(rng, number, num, first_us)
        is_closed = first_us + window_us < now_us
        total.add(row.id, table_changes(NO_ROWS, rows_of(state, window_us, {"paid": "mean"}, is_closed=is_closed)))
        unit = row.id, md5(str(number).encode(), usedforsecurity=False).digest()
        writes.append(UnitWrite(unit, state, state.closes_us(window_us), is_closed))
        if len(writes) == UNITS_AT_ONCE or number == args.units - 1:
            async with database.transaction() as conn:
                await write_units(conn, writes)
            writes = []
    async with database.transaction() as conn:
        await add_total(conn, total)
    async with database.acquire() as conn:
        await conn.execute(_ANALYZE, timeout=ANALYZE_TIMEOUT_S)


def _state(rng: random.Random, number: int, num_requests: int, first_us: int) -> UnitState:
    """Return a unit's state after its requests, of which the first took some time and was perhaps voted about.

    number: the number of the unit. first_us: the time of the first request, in Unix microseconds.
    """
    medians_us = {"ttft_ms": 50_000, "queue_ms": 2_500, "engine_ms": 70_000, "time_per_token_ms": 2_500}
    times = {name: int(median * rng.lognormvariate(0, 0.5)) for name, median in medians_us.items()}
    counts = Counts(
        num_requests=num_requests,
        num_errors=int(rng.random() < 0.1),
        cost_nanos=rng.randrange(1_000_000 * num_requests),
        prompt_tokens=100 * num_requests,
        completion_tokens=rng.randrange(200 * num_requests),
        ttft_us=times["ttft_ms"] * num_requests,
        num_ttft=num_requests,
        token_us=times["time_per_token_ms"] * num_requests,
        num_token_times=num_requests,
        queue_us=times["queue_ms"] * num_requests,
        engine_us=times["engine_ms"] * num_requests,
        num_votes=int(number % 10 == 0),
    )
    request_id = f"req_{number}_0"
    firsts = {name: FirstTime(first_us, request_id, 0, us) for name, us in times.items()}
    votes = {"paid": (number % 1000, 1)} if number % 10 == 0 else {}
    return UnitState(first_us, request_id, 1, number % 3, True, counts, votes, firsts)


async def write_requests(
    database: Database,
    row: Row,
    organization_id: str,
    units: tuple[int, int],
    args: argparse.Namespace,
    days_ago: int,
    num: int | None = None,
) -> None:
    """Write the requests of some units, as the ledger's writer does: exposures and usage in one transaction.

    units: the first and the last number of the units. days_ago: the days since the requests. num: the requests of each
    unit; None: as many as the arguments say.
    """
    values = row.project_id, row.id, *units, num or args.exposures // args.units, days_ago
    async with database.transaction() as conn:
        await conn.execute(_REQUESTS, *values)
        await conn.execute(_LEDGER, *values, organization_id)
        await conn.execute(_VOTES, row.project_id, row.id, *units, days_ago)


async def lag_s(database: Database, row: Row, args: argparse.Namespace) -> float:
    """Return the highest age, in seconds, of a waiting event while requests come at a steady rate."""
    bookkeeper, loop = ExperimentBookkeeper(database), asyncio.get_running_loop()
    async with database.acquire() as conn:
        organization = await ensure_organization(conn, "bench")
    bookkeeper.start()
    start_s, next_unit, highest = loop.time(), args.units, 0.0
    each = max(1, args.rate // 5)
    while (elapsed_s := loop.time() - start_s) < args.seconds:
        await write_requests(database, row, organization.id, (next_unit, next_unit + each - 1), args, 0, 1)
        next_unit += each
        async with database.acquire() as conn:
            highest = max(highest, (await count_waiting(conn)).lag_s)
        due_s = start_s + (next_unit - args.units) / args.rate
        await asyncio.sleep(max(0.0, due_s - loop.time()))
    await bookkeeper.stop()
    sys.stderr.write(f"steady load: {(next_unit - args.units) / elapsed_s:.0f} requests/s\n")
    return highest


async def timed_ms(read: Callable[[], Awaitable[object]], count: int) -> dict[str, float]:
    """Call `read` `count` times; return the median and the 99th percentile of its milliseconds."""
    took = []
    for _ in range(count):
        began_s = time.perf_counter()
        await read()
        took.append((time.perf_counter() - began_s) * 1e3)
    return {"p50": statistics.median(took), "p99": sorted(took)[max(0, round(count * 0.99) - 1)]}


async def measure(args: argparse.Namespace, dsn: str) -> dict[str, Any]:
    """Measure the queries at one size of the tables, and return the row of figures."""
    async with await Database.connect(dsn) as database:
        began_s = time.perf_counter()
        if args.from_states:
            row = await fill(database, argparse.Namespace(units=0, exposures=0, days=args.days))
            await fill_from_states(database, row, args)
        else:
            row = await fill(database, args)
        filled_s = time.perf_counter() - began_s
        sys.stderr.write(f"filled in {filled_s:.0f} s\n")
        bookkeeper = ExperimentBookkeeper(database)
        began_s, cpu_s = time.perf_counter(), time.process_time()
        async with database.acquire() as conn:
            num_events = await conn.fetchval("SELECT count(*) FROM experiment_events")
        await bookkeeper.work()
        counted_s, counted_cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
        sys.stderr.write(f"counted {num_events} events in {counted_s:.0f} s\n")
        async with database.acquire() as conn:
            await conn.execute(_ANALYZE, timeout=ANALYZE_TIMEOUT_S)
            figures: dict[str, Any] = {
                "results_ms": await timed_ms(lambda: read_results(conn, row), args.looks),
                "health_ms": await timed_ms(lambda: read_health(conn, row), args.looks),
                "timeline_ms": await timed_ms(lambda: read_timeline(database, row), 3),
            }
        figures["lag_s"] = await lag_s(database, row, args)
        if not args.no_recount:
            began_s = time.perf_counter()
            await bookkeeper.work()
            async with database.acquire() as conn:
                found = await verify(conn, row.id)
            figures["recount_s"] = time.perf_counter() - began_s
            figures["differences"] = list(found.differences)
            figures["recounted_units"] = found.num_recounted
        return {
            "exposures": args.exposures,
            "units": args.units,
            "days": args.days,
            "fill_s": filled_s,
            "events_per_s": num_events / counted_s,
            "own_cpu_us_per_event": counted_cpu_s / num_events * 1e6 if num_events else None,
            **figures,
        }


def main(argv: Sequence[str] | None = None) -> int:
    """Fill the tables and measure them; return 0 if a recount equals the tables.

    argv: the words of the command line, without the program's name; None: those of this process.
    """
    parser = argparse.ArgumentParser(prog="python -m gateway.bench.experiments.tables", description=__doc__)
    add = parser.add_argument
    add("--exposures", type=int, default=10_000_000)
    add("--units", type=int, default=1_000_000)
    add("--days", type=int, default=90)
    add("--looks", type=int, default=100, help="looks at results and at health, each")
    add("--rate", type=int, default=500, help="requests a second of the steady load")
    add("--seconds", type=float, default=10.0, help="seconds of the steady load")
    add("--from-states", action="store_true", help="write units and sums without a ledger")
    add("--no-recount", action="store_true", help="leave out the recount of all rows")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="lorikeet-bench-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # PostgreSQL may have to run as another user
        with own_database(folder / "postgres") as dsn, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            figures = runner.run(measure(args, dsn))
    sys.stdout.write(f"{json.dumps(figures, indent=2)}\n")
    return int(bool(figures.get("differences")))


if __name__ == "__main__":
    sys.exit(main())
