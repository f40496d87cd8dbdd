"""Fills a ledger with made-up usage of one month, quickly: tenants, keys and models in fixed proportions.

python -m tests.gateway.billing.generator DSN NUM_EVENTS
"""

from __future__ import annotations

import asyncio
import datetime
import sys
import time

import asyncpg
import msgspec

from gateway.db.ledger.rollups import roll_up

MONTH = datetime.date(2026, 3, 1)
DAYS = 31
NUM_PROJECTS, KEYS_PER_PROJECT, MODELS_PER_PROJECT = 100, 2, 3
WRITES_PER_DAY = 4
MINUTES_PER_WRITE, MINUTES_OF_LAST = 24, 1440 // WRITES_PER_DAY
"""The most minutes with usage in each part of a day, and in the last part of all, where every minute has usage."""

MANY_EVENTS = 1_000_000

# Part of a day's share, in minutes all over that part, in the order in which gateways would write it. Times until the
# first token span 15 buckets of the roll-ups and those per token 6; one request in ten ends for another reason than its
# end.
_INSERT = """
    INSERT INTO ledger (
        request_id, attempt, revision, kind, organization_id, project_id, api_key_id, endpoint, model,
        adapter_id, adapter_version, adapter_digest, adapter_class, service_tier, stream,
        prompt_tokens, cached_tokens, completion_tokens, discarded_tokens, finish_reason,
        queue_ms, prefill_ms, decode_ms, ttft_ms, latency_ms, adapter_load_bytes, created_at, finished_at, period,
        price_version, input_cost_nanos, cached_cost_nanos, output_cost_nanos, cost_nanos, list_cost_nanos)
    SELECT 'req_' || md5(x.at::text || n), 0, 0, 'usage', $1, 'proj_' || x.project,
           'key_' || x.project || '_' || x.key,
           '/v1/chat/completions', CASE x.model WHEN 0 THEN 'base' ELSE 'base:a' || x.project || '_' || x.model END,
           CASE WHEN x.model > 0 THEN 'adpt_' || x.project || '_' || x.model END, CASE WHEN x.model > 0 THEN 1 END,
           NULL, CASE WHEN x.model > 0 THEN 'default' ELSE 'none' END, 'default', true,
           200 + n % 900, n % 200, 50 + n % 400, 0,
           CASE WHEN n % 10 > 0 THEN 'stop' ELSE (ARRAY['length', 'length', 'abort', 'error'])[1 + n / 10 % 4] END,
           1, x.ttft_ms - 10, (50 + n % 400) * x.tpot_ms, x.ttft_ms, x.ttft_ms + (49 + n % 400) * x.tpot_ms, 0,
           x.at, x.at + (x.ttft_ms + (50 + n % 400) * x.tpot_ms) * interval '1 ms',
           date_trunc('month', $2::date), NULL, (n % 700) * 100, 0, (n % 400) * 400,
           (n % 700) * 100 + (n % 400) * 400, 0
    FROM generate_series(1, $4::bigint) n CROSS JOIN LATERAL (
        SELECT (n * 7919) % $5 AS project, (n / 3) % $6 AS key, (n / 5) % $7 AS model,
               20 * power(1.21, n / 11 % 15) AS ttft_ms, 8 * power(1.21, n / 13 % 6) AS tpot_ms,
               date_trunc('minute', $2::date::timestamp AT TIME ZONE 'UTC'
                       + ($3::integer + ((hashint8(n) & 65535) % $9::integer)::double precision / $9)
                       * (interval '1 day' / $8::integer))
                   + n % 59999 * interval '1 ms' AS at
    ) x
    ORDER BY x.at
"""


class GeneratedUsage(msgspec.Struct, frozen=True):
    """The organization whose usage was generated, the number of its events, and their month."""

    organization_id: str
    num_events: int
    start: datetime.datetime
    end: datetime.datetime


async def generate_usage(conn: asyncpg.Connection[asyncpg.Record], num_events: int) -> GeneratedUsage:
    """Write about `num_events` rows into the ledger, and roll up their sums.

    The trigger that refuses rows of closed periods is disabled meanwhile, since no period is closed.
    """
    organization_id = await conn.fetchval(
        "INSERT INTO organizations (id, name) VALUES ('org_generated', 'generated') RETURNING id"
    )
    each = num_events // (DAYS * WRITES_PER_DAY)
    few = min(MINUTES_PER_WRITE, max(1, each // (2 * NUM_PROJECTS * KEYS_PER_PROJECT * MODELS_PER_PROJECT)))
    dates = [MONTH + datetime.timedelta(days=day) for day in range(DAYS)]
    for date in dates:
        await conn.execute("SELECT ensure_ledger_day($1)", date)
    await conn.execute("ALTER TABLE ledger DISABLE TRIGGER ledger_guarded")
    for date in dates:
        for part in range(WRITES_PER_DAY):
            is_last = (date, part) == (dates[-1], WRITES_PER_DAY - 1)
            await conn.execute(
                _INSERT,
                organization_id,
                date,
                part,
                each,
                NUM_PROJECTS,
                KEYS_PER_PROJECT,
                MODELS_PER_PROJECT,
                WRITES_PER_DAY,
                MINUTES_OF_LAST if is_last else few,
            )
        while True:
            async with conn.transaction():
                if not await roll_up(conn, 100_000):
                    break
    await conn.execute("ALTER TABLE ledger ENABLE TRIGGER ledger_guarded")
    # The planner needs the ledger's size alone. Arrays are slow to sample, so a small ledger has a small sample.
    await conn.execute(f"SET default_statistics_target = {10 if num_events < MANY_EVENTS else 100}")
    await conn.execute("ANALYZE usage_rollups, traffic_rollups, traffic_times, period_sums")
    await conn.execute("RESET default_statistics_target")
    start = datetime.datetime.combine(MONTH, datetime.time(), datetime.UTC)
    return GeneratedUsage(organization_id, each * DAYS * WRITES_PER_DAY, start, start + datetime.timedelta(days=DAYS))


async def main(dsn: str, num_events: int) -> None:
    conn = await asyncpg.connect(dsn)
    start_s = time.monotonic()
    made = await generate_usage(conn, num_events)
    print(f"{made.num_events} events in {time.monotonic() - start_s:.0f} s")
    await conn.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
