"""Roll-ups: sums of the ledger, added up by one consumer, by minute, hour and day, and by the month that bills.

Writers of the ledger leave what they add in a queue, in the same transaction; another transaction takes it from there
and adds it to the sums. So whatever has committed counts exactly once, and nothing has to be told by its number or
time.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.db.pool import Connection, Database

_LOCK_KEY = 0x726F6C6C757073  # "rollups"
_LOCK = "SELECT pg_advisory_xact_lock($1)"

MAX_BATCH = 5000
DAYS_AHEAD = 7

# Takes the lock itself, where it is free. Rows that another transaction took, which has ended meanwhile, are not taken
# again.
_ROLL_UP = """
    WITH taken AS (
        DELETE FROM rollup_queue WHERE id IN (
            SELECT id FROM rollup_queue ORDER BY id
            LIMIT CASE WHEN pg_try_advisory_xact_lock($2) THEN $1::integer ELSE 0 END)
        RETURNING *
    ), by_time AS (
        INSERT INTO usage_rollups AS r (
            organization_id, width, bucket, project_id, api_key_id, model, adapter_id, endpoint, service_tier,
            num_requests, prompt_tokens, cached_tokens, completion_tokens,
            input_cost_nanos, cached_cost_nanos, output_cost_nanos, cost_nanos)
        SELECT t.organization_id, w.width, date_trunc(w.width, t.minute, 'UTC') AS bucket, t.project_id, t.api_key_id,
               t.model, coalesce(t.adapter_id, '') AS adapter_id, t.endpoint, t.service_tier,
               sum(t.num_requests), sum(t.prompt_tokens), sum(t.cached_tokens), sum(t.completion_tokens),
               sum(t.input_cost_nanos), sum(t.cached_cost_nanos), sum(t.output_cost_nanos), sum(t.cost_nanos)
        FROM taken t CROSS JOIN (VALUES ('minute'), ('hour'), ('day')) AS w (width)
        GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9
        ON CONFLICT (organization_id, width, bucket, project_id, api_key_id, model, adapter_id, endpoint, service_tier)
        DO UPDATE SET
            num_requests = r.num_requests + excluded.num_requests,
            prompt_tokens = r.prompt_tokens + excluded.prompt_tokens,
            cached_tokens = r.cached_tokens + excluded.cached_tokens,
            completion_tokens = r.completion_tokens + excluded.completion_tokens,
            input_cost_nanos = r.input_cost_nanos + excluded.input_cost_nanos,
            cached_cost_nanos = r.cached_cost_nanos + excluded.cached_cost_nanos,
            output_cost_nanos = r.output_cost_nanos + excluded.output_cost_nanos,
            cost_nanos = r.cost_nanos + excluded.cost_nanos
    ), by_period AS (
        INSERT INTO period_sums AS s (
            organization_id, period, project_id, kind, corrects_period, model, adapter_class, service_tier,
            price_version, num_requests, prompt_tokens, cached_tokens, completion_tokens,
            input_cost_nanos, cached_cost_nanos, output_cost_nanos, cost_nanos, list_cost_nanos)
        SELECT t.organization_id, t.period, t.project_id, t.kind, t.corrects_period, t.model, t.adapter_class,
               t.service_tier, coalesce(t.price_version, 0) AS price_version,
               sum(t.num_requests), sum(t.prompt_tokens), sum(t.cached_tokens), sum(t.completion_tokens),
               sum(t.input_cost_nanos), sum(t.cached_cost_nanos), sum(t.output_cost_nanos), sum(t.cost_nanos),
               sum(t.list_cost_nanos)
        FROM taken t GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9
        ON CONFLICT (organization_id, period, project_id, kind, corrects_period, model, adapter_class, service_tier,
                     price_version)
        DO UPDATE SET
            num_requests = s.num_requests + excluded.num_requests,
            prompt_tokens = s.prompt_tokens + excluded.prompt_tokens,
            cached_tokens = s.cached_tokens + excluded.cached_tokens,
            completion_tokens = s.completion_tokens + excluded.completion_tokens,
            input_cost_nanos = s.input_cost_nanos + excluded.input_cost_nanos,
            cached_cost_nanos = s.cached_cost_nanos + excluded.cached_cost_nanos,
            output_cost_nanos = s.output_cost_nanos + excluded.output_cost_nanos,
            cost_nanos = s.cost_nanos + excluded.cost_nanos,
            list_cost_nanos = s.list_cost_nanos + excluded.list_cost_nanos
    ), in_minutes AS (
        SELECT minute, organization_id, project_id, model, coalesce(adapter_id, '') AS adapter_id,
               coalesce(adapter_version, 0) AS adapter_version,
               sum(num_requests) AS num_requests, sum(num_stop) AS num_stop, sum(num_length) AS num_length,
               sum(num_cancelled) AS num_cancelled, sum(num_errors) AS num_errors, sum(num_refused) AS num_refused,
               sum(prompt_tokens) AS prompt_tokens, sum(cached_tokens) AS cached_tokens,
               sum(completion_tokens) AS completion_tokens, sum(cost_nanos) AS cost_nanos,
               all_of(ttft_buckets) AS ttft_buckets, all_of(tpot_buckets) AS tpot_buckets
        FROM taken WHERE kind = 'usage' GROUP BY 1, 2, 3, 4, 5, 6
    ), sums AS MATERIALIZED (
        SELECT t.organization_id, l.level, w.width, date_trunc(w.width, t.minute, 'UTC') AS bucket,
               CASE WHEN l.by_project THEN t.project_id ELSE '' END AS project_id,
               CASE WHEN l.by_model THEN t.model ELSE '' END AS model,
               CASE WHEN l.by_model THEN t.adapter_id ELSE '' END AS adapter_id,
               CASE WHEN l.by_model THEN t.adapter_version ELSE 0 END AS adapter_version,
               sum(t.num_requests) AS num_requests, sum(t.num_stop) AS num_stop, sum(t.num_length) AS num_length,
               sum(t.num_cancelled) AS num_cancelled, sum(t.num_errors) AS num_errors,
               sum(t.num_refused) AS num_refused,
               sum(t.prompt_tokens) AS prompt_tokens, sum(t.cached_tokens) AS cached_tokens,
               sum(t.completion_tokens) AS completion_tokens, sum(t.cost_nanos) AS cost_nanos,
               all_of(t.ttft_buckets) AS ttft_buckets, all_of(t.tpot_buckets) AS tpot_buckets
        FROM in_minutes t CROSS JOIN (VALUES ('minute'), ('hour'), ('day')) AS w (width)
            CROSS JOIN (VALUES ('organization', false, false), ('project', true, false), ('model', false, true),
                               ('full', true, true)) AS l (level, by_project, by_model)
        GROUP BY 1, 2, 3, 4, 5, 6, 7, 8
    ), added AS (
        INSERT INTO traffic_rollups AS r (
            organization_id, level, width, bucket, project_id, model, adapter_id, adapter_version,
            num_requests, num_stop, num_length, num_cancelled, num_errors, num_refused, prompt_tokens,
            cached_tokens, completion_tokens, cost_nanos)
        SELECT organization_id, level, width, bucket, project_id, model, adapter_id, adapter_version,
               num_requests, num_stop, num_length, num_cancelled, num_errors, num_refused, prompt_tokens,
               cached_tokens, completion_tokens, cost_nanos
        FROM sums
        ON CONFLICT (organization_id, level, width, bucket, project_id, model, adapter_id, adapter_version)
        DO UPDATE SET
            num_requests = r.num_requests + excluded.num_requests,
            num_stop = r.num_stop + excluded.num_stop,
            num_length = r.num_length + excluded.num_length,
            num_cancelled = r.num_cancelled + excluded.num_cancelled,
            num_errors = r.num_errors + excluded.num_errors,
            num_refused = r.num_refused + excluded.num_refused,
            prompt_tokens = r.prompt_tokens + excluded.prompt_tokens,
            cached_tokens = r.cached_tokens + excluded.cached_tokens,
            completion_tokens = r.completion_tokens + excluded.completion_tokens,
            cost_nanos = r.cost_nanos + excluded.cost_nanos
    ), timed AS (
        INSERT INTO traffic_times AS r (
            organization_id, level, width, bucket, project_id, model, adapter_id, adapter_version,
            ttft_counts, tpot_counts)
        SELECT organization_id, level, width, bucket, project_id, model, adapter_id, adapter_version,
               time_counts(ttft_buckets), time_counts(tpot_buckets)
        FROM sums WHERE ttft_buckets <> '{}' OR tpot_buckets <> '{}'
        ON CONFLICT (organization_id, level, width, bucket, project_id, model, adapter_id, adapter_version)
        DO UPDATE SET
            ttft_counts = added_counts(r.ttft_counts, excluded.ttft_counts),
            tpot_counts = added_counts(r.tpot_counts, excluded.tpot_counts)
    )
    SELECT count(*) FROM taken
"""


async def roll_up(conn: Connection, max_rows: int = MAX_BATCH) -> int:
    """Add usage in the queue to the sums, in the caller's transaction if there is one.

    Return the number of rows taken from the queue; 0 while another transaction adds.
    """
    num_rows: int = await conn.fetchval(_ROLL_UP, max_rows, _LOCK_KEY)
    return num_rows


async def catch_up(database: Database) -> None:
    """Add all usage in the queue to the sums, in transactions of their own, unless another process does so."""
    async with database.acquire() as conn:
        while await roll_up(conn) == MAX_BATCH:
            pass


async def roll_up_all(conn: Connection) -> None:
    """Add all committed usage to the sums, in the caller's transaction, after waiting for any other that does so."""
    await conn.fetchval(_LOCK, _LOCK_KEY)
    while await roll_up(conn):
        pass


_ENSURE_DAYS = """
    SELECT ensure_ledger_day((now() AT TIME ZONE 'UTC')::date + day) FROM generate_series(0, $1::integer) AS day
"""


async def ensure_days(conn: Connection) -> None:
    """Make the ledger's partitions of today and the days ahead; others are made when their first row comes."""
    await conn.execute(_ENSURE_DAYS, DAYS_AHEAD)


_SPAN = """
    SELECT least($2::date, min(s.corrects_period))::timestamp AT TIME ZONE 'UTC',
           ($2::date + interval '1 month') AT TIME ZONE 'UTC'
    FROM (
        SELECT corrects_period FROM period_sums WHERE organization_id = $1 AND period = $2 AND kind = 'usage'
        UNION ALL
        SELECT corrects_period FROM rollup_queue WHERE organization_id = $1 AND period = $2 AND kind = 'usage'
    ) s
"""


async def span_of_period(
    conn: Connection, organization_id: str, period: datetime.date
) -> tuple[datetime.datetime, datetime.datetime]:
    """Return the instants between which the usage that a month bills was created, late usage included.

    A query that names them leaves the ledger's other days alone. Exact for a month that is closed, and within a
    snapshot.
    """
    row = await conn.fetchrow(_SPAN, organization_id, period)
    assert row is not None
    return row[0], row[1]
