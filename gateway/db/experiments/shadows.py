"""The results of copies of requests for an experiment's shadow arm, read from the ledger and from gateways' notes."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import msgspec

from gateway.domain.experiments.shadowing import OUTCOME_PREFIX

if TYPE_CHECKING:
    from gateway.db.pool import Connection

MAX_ROWS = 100_000
"""The most rows of the ledger that are read; the latest ones are read."""


class ShadowSums(msgspec.Struct, frozen=True, kw_only=True):
    """The counts, cost and times of an experiment's copies. Times are in ms, None without any copy that has one."""

    requests: int
    """Copies that were sent to an engine."""
    errors: int
    """Copies that ended in an error."""
    prompt_tokens: int
    completion_tokens: int
    cost_nanos: int
    ttft_p50: float | None
    """The median time to the first token."""
    ttft_p95: float | None
    """The time to the first token that 95 % of the copies took at the most."""
    latency_p50: float | None
    latency_p95: float | None
    engine_p50: float | None
    """The median time that the engine computed."""
    engine_p95: float | None


# An attempt's times, and how it ended, are those of its last revision; its counts are sums over all of them.
_SUMS = """
    WITH latest AS (
        SELECT request_id, attempt, revision, finish_reason, prompt_tokens, completion_tokens, cost_nanos, ttft_ms,
               latency_ms, prefill_ms, decode_ms
        FROM ledger
        WHERE experiment_id = $1 AND service_tier = 'shadow' AND created_at >= $2
        ORDER BY created_at DESC LIMIT $3
    ), attempts AS (
        SELECT position('.' IN request_id) = 0 AS counts, sum(prompt_tokens) AS prompt_tokens,
               sum(completion_tokens) AS completion_tokens, sum(cost_nanos) AS cost_nanos,
               (array_agg(finish_reason ORDER BY revision DESC))[1] AS finish_reason,
               (array_agg(ttft_ms ORDER BY revision DESC))[1] AS ttft_ms,
               (array_agg(latency_ms ORDER BY revision DESC))[1] AS latency_ms,
               sum(prefill_ms + decode_ms) AS engine_ms
        FROM latest GROUP BY request_id, attempt
    ), whole AS (
        SELECT *, counts AND finish_reason IN ('stop', 'length') AS is_timed FROM attempts
        WHERE finish_reason <> 'superseded'
    )
    SELECT count(*) FILTER (WHERE counts) AS requests,
           count(*) FILTER (WHERE counts AND finish_reason = 'error') AS errors,
           coalesce(sum(prompt_tokens), 0)::bigint AS prompt_tokens,
           coalesce(sum(completion_tokens), 0)::bigint AS completion_tokens,
           coalesce(sum(cost_nanos), 0)::bigint AS cost_nanos,
           percentile_cont(0.5) WITHIN GROUP (ORDER BY ttft_ms) FILTER (WHERE is_timed) AS ttft_p50,
           percentile_cont(0.95) WITHIN GROUP (ORDER BY ttft_ms) FILTER (WHERE is_timed) AS ttft_p95,
           percentile_cont(0.5) WITHIN GROUP (ORDER BY latency_ms) FILTER (WHERE is_timed) AS latency_p50,
           percentile_cont(0.95) WITHIN GROUP (ORDER BY latency_ms) FILTER (WHERE is_timed) AS latency_p95,
           percentile_cont(0.5) WITHIN GROUP (ORDER BY engine_ms) FILTER (WHERE is_timed) AS engine_p50,
           percentile_cont(0.95) WITHIN GROUP (ORDER BY engine_ms) FILTER (WHERE is_timed) AS engine_p95
    FROM whole
"""


async def load_shadow_sums(conn: Connection, experiment_id: str, since: datetime.datetime) -> ShadowSums:
    """Return the sums of the copies for an experiment's shadow arm, of the latest `MAX_ROWS` since an instant."""
    row = await conn.fetchrow(_SUMS, experiment_id, since, MAX_ROWS)
    assert row is not None
    return ShadowSums(**row)


_OUTCOMES = """
    SELECT substr(reason, length($2) + 1) AS outcome, sum(num_requests)::bigint AS num FROM experiment_reasons
    WHERE experiment_id = $1 AND starts_with(reason, $2) GROUP BY reason ORDER BY reason
"""


async def load_outcomes(conn: Connection, experiment_id: str) -> dict[str, int]:
    """Return the numbers of copies by their outcome (`shadowing.Outcome`)."""
    rows = await conn.fetch(_OUTCOMES, experiment_id, OUTCOME_PREFIX)
    return {row["outcome"]: row["num"] for row in rows}
