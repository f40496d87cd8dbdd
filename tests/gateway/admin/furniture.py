"""Rows that a generated ledger lacks and the dashboard shows: tenants, keys, adapters, pools, limits, people,
changes."""

from __future__ import annotations

import datetime

from gateway.db.adapters.bases import register_base
from gateway.db.ids import new_id
from gateway.db.ledger.usage import UsageEvent, write_usage_events
from gateway.db.organization import audit
from gateway.db.pool import Database
from tests.gateway.bases import BASE_DIGEST
from tests.gateway.billing.generator import KEYS_PER_PROJECT, MODELS_PER_PROJECT, NUM_PROJECTS

NUM_CHANGES, NUM_REFUSED, NUM_USERS, NUM_RECENT = 500, 50, 100, 200
NUM_POOLS = 100

_TENANTS = """
    INSERT INTO projects (id, organization_id, name)
    SELECT 'proj_' || p, $1, 'tenant ' || p FROM generate_series(0, $2::integer - 1) p
"""
_KEYS = """
    INSERT INTO api_keys (id, kind, organization_id, project_id, name, public, sha256, scopes)
    SELECT id, 'project', $1, 'proj_' || p, 'key ' || k, id, sha256(id::bytea), '{inference}'
    FROM generate_series(0, $2::integer - 1) p, generate_series(0, $3::integer - 1) k,
         LATERAL (SELECT 'key_' || p || '_' || k AS id) i
"""
_ADAPTERS = """
    INSERT INTO adapters (id, project_id, base_digest, name, current_version)
    SELECT 'adpt_' || p || '_' || m, 'proj_' || p, $3, 'a' || p || '-' || m, 1
    FROM generate_series(0, $1::integer - 1) p, generate_series(1, $2::integer - 1) m
"""
_VERSIONS = """
    INSERT INTO adapter_versions (adapter_id, version, digest, rank, size_bytes, state, source)
    SELECT id, 1, encode(sha256(id::bytea), 'hex'), 8, 1000000, 'ready', 'upload' FROM adapters
"""
_LIMITS = """
    INSERT INTO limits (id, organization_id, project_id, unit, period, max, hard, alert_percents)
    SELECT 'lim_' || p || '_' || unit, $1, 'proj_' || p, unit, 'month', 1000000000, true, '{80}'
    FROM generate_series(0, $2::integer - 1) p, unnest('{requests,tokens}'::text[]) unit
"""
_USERS = """
    INSERT INTO users (id, organization_id, email, name)
    SELECT 'user_' || u, $1, 'user' || u || '@example.com', 'User ' || u FROM generate_series(1, $2::integer) u
"""
_POOLS = """
    WITH made AS (
        INSERT INTO pools (id, organization_id, name, num_replicas, revision, wanted_revision)
        SELECT 'pool_' || n, $1, 'pool-' || n, 10, 1, 1 FROM generate_series(0, $2::integer - 1) n RETURNING id
    ), revised AS (
        INSERT INTO pool_revisions (pool_id, revision, model, folder, base_digest, num_bytes, state)
        SELECT id, 1, 'demo', '/models/base', $3, 1000000000, 'prepared' FROM made RETURNING pool_id
    ), hosted AS (
        INSERT INTO hosts (id, name, num_processors, memory_bytes)
        SELECT 'host_' || n, 'host ' || n, 64, 1000000000000 FROM generate_series(0, 9) n RETURNING id
    )
    INSERT INTO replicas (id, pool_id, revision, host_id, state, generation)
    SELECT 'replica_' || pool_id || id, pool_id, 1, id, 'ready', 1 FROM revised CROSS JOIN hosted
"""
_REFUSALS = """
    INSERT INTO refusals (organization_id, project_id, api_key_id, minute, kind, request_ids, endpoint, model, status,
                          code, type, param, message, num)
    SELECT $1, 'proj_' || p, 'key_' || p || '_0', date_trunc('minute', now()) - n * interval '1 minute', int4send(n),
           ARRAY['req_refused_' || p || '_' || n], '/v1/chat/completions', 'base', 429, 'rate_limit_exceeded',
           'requests', '', 'Too many requests.', n
    FROM generate_series(0, $2::integer - 1) p, generate_series(1, $3::integer) n
"""


async def furnish(database: Database, organization_id: str) -> list[str]:
    """Write the rows that a generated ledger lacks, unless the database has them, and the usage of new requests.

    Return the ids of the new requests.
    """
    async with database.transaction() as conn:
        if not await conn.fetchval("SELECT EXISTS (SELECT FROM projects WHERE organization_id = $1)", organization_id):
            await conn.execute(_TENANTS, organization_id, NUM_PROJECTS)
            await conn.execute(_KEYS, organization_id, NUM_PROJECTS, KEYS_PER_PROJECT)
            await register_base(conn, BASE_DIGEST, "base")
            await conn.execute(_ADAPTERS, NUM_PROJECTS, MODELS_PER_PROJECT, BASE_DIGEST)
            await conn.execute(_VERSIONS)
            await conn.execute(_POOLS, organization_id, NUM_POOLS, BASE_DIGEST)
            await conn.execute(_LIMITS, organization_id, NUM_PROJECTS)
            await conn.execute(_USERS, organization_id, NUM_USERS)
            await conn.execute(_REFUSALS, organization_id, NUM_PROJECTS, NUM_REFUSED)
            author = audit.Author(
                organization_id=organization_id, kind="user", id="user_1", email=None, address="", request_id=""
            )
            for number in range(NUM_CHANGES):
                project_id = f"proj_{number % NUM_PROJECTS}"
                change = {"name": f"tenant {number}"}
                await audit.record(
                    conn, author, "project.updated", project_id, project_id=project_id, before=change, after=change
                )
        now = datetime.datetime.now(datetime.UTC)
        events = [_event(organization_id, number, now) for number in range(NUM_RECENT)]
        await write_usage_events(conn, events)
        return [event.request_id for event in events]


def _event(organization_id: str, number: int, now: datetime.datetime) -> UsageEvent:
    project = number % NUM_PROJECTS
    return UsageEvent(
        request_id=new_id("req"),
        attempt=0,
        organization_id=organization_id,
        project_id=f"proj_{project}",
        api_key_id=f"key_{project}_0",
        endpoint="/v1/chat/completions",
        model=f"base:a{project}_1",
        adapter_id=f"adpt_{project}_1",
        adapter_version=1,
        adapter_digest=None,
        stream=True,
        prompt_tokens=100,
        cached_tokens=10,
        completion_tokens=50,
        discarded_tokens=0,
        finish_reason="stop",
        queue_ms=1.0,
        prefill_ms=10.0,
        decode_ms=500.0,
        ttft_ms=30.0,
        latency_ms=530.0,
        adapter_load_bytes=0,
        created_at=now - datetime.timedelta(seconds=number),
        finished_at=now,
    )
