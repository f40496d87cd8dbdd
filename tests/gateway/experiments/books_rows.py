"""Rows of experiments as gateways write them: a running experiment, units' requests, refusals, votes."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.db.ids import new_id
from gateway.db.ledger.usage import UsageEvent
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
from gateway.domain.experiments.feedback.votes import Source
from gateway.experiments.bookkeeper import ExperimentBookkeeper
from gateway.experiments.recount import Verification, verify

if TYPE_CHECKING:
    from gateway.db.pool import Connection

WINDOW_S = 86_400
NOW = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
_numbers = itertools.count(1)

DEFINITION = Experiment(
    "tone",
    "support-bot",
    UnitSource("user"),
    tuple(Arm(name, 1, Target("tiny")) for name in ("control", "warm")),
    Metrics((Primary("paid", "increase"),), (Guardrail("error_rate", "pause"),), ("completion_tokens",)),
    analysis=Analysis(outcome_window_seconds=WINDOW_S, min_days=0),
)


class RunningExperiment(msgspec.Struct, frozen=True):
    """A running experiment."""

    organization_id: str
    project_id: str
    id: str


class UnitRequest(msgspec.Struct, frozen=True):
    """A request of a unit, to be written as rows."""

    unit: bytes
    arm: int = 0
    at: datetime.datetime = NOW
    epoch: int = 1
    request_id: str = ""
    attempt: int = 0
    tokens: int = 5
    finish_reason: str = "stop"
    is_delivered: bool = True
    ttft_ms: float | None = 20.0
    latency_ms: float | None = 60.0
    queue_ms: float = 1.5
    decode_ms: float = 40.0
    stream: bool = False
    api_key_id: str = "key"
    gateway: str = "gw"


def unit(number: int) -> bytes:
    """Return the digest of a unit."""
    return number.to_bytes(16, "big")


_LAYER = "INSERT INTO experiment_layers (project_id, name, seed) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
_METRIC = """
    INSERT INTO feedback_metrics (project_id, name, type, goal, kind) VALUES ($1, $2, 'number', 'increase', $3)
    ON CONFLICT DO NOTHING
"""
_EXPERIMENT = """
    INSERT INTO experiments (id, project_id, name, model, state, definition, layer, seed, slots, tables, started_at)
    VALUES ($1, $2, $3, $4, 'running', $5, $6, $7, $8, $9, $10)
"""


async def make_experiment(
    conn: Connection, definition: Experiment = DEFINITION, *, project: str = "acme", days_ago: int = 10
) -> RunningExperiment:
    """Create a running experiment of a project; create the project too if it does not exist."""
    organization = await ensure_organization(conn, "default")
    row = await create_project(conn, organization.id, project)
    project_id: str = (
        row.id if row is not None else await conn.fetchval("SELECT id FROM projects WHERE name = $1", project)
    )
    for name, kind in (("paid", "mean"), ("thumbs_up", "ratio")):
        await conn.execute(_METRIC, project_id, name, kind)
    number = next(_numbers)
    layer, seed = f"layer-{number}", bytes([number % 256]) * 32
    await conn.execute(_LAYER, project_id, layer, seed)
    split = first_split(seed, seed, range(NUM_BUCKETS), [arm.weight for arm in definition.arms])
    made = RunningExperiment(organization.id, project_id, new_id("exp"))
    name = f"{definition.name}-{number}"
    text = msgspec.json.encode(msgspec.structs.replace(definition, name=name, model=name)).decode()
    started_at = NOW - datetime.timedelta(days=days_ago)
    await conn.execute(
        _EXPERIMENT, made.id, project_id, name, name, text, layer, seed, split.slots, list(split.tables), started_at
    )
    return made


_REQUESTS = """
    INSERT INTO experiment_requests (
        request_id, project_id, experiment_id, digest, epoch, arm, is_delivered, created_at, api_key_id, endpoint,
        stream, service_tier, gateway)
    SELECT u.id, $1, $2, u.digest, u.epoch, u.arm, u.is_delivered, u.at, u.api_key_id, 'chat.completions', u.stream,
           'default', u.gateway
    FROM unnest($3::text[], $4::bytea[], $5::smallint[], $6::smallint[], $7::boolean[], $8::timestamptz[], $9::text[],
                $10::boolean[], $11::text[])
        AS u (id, digest, epoch, arm, is_delivered, at, api_key_id, stream, gateway)
    ON CONFLICT DO NOTHING
"""
_USAGE = "SELECT count(*) FROM write_usage(ARRAY(SELECT e FROM json_populate_recordset(NULL::ledger, $1::json) e))"


async def send(conn: Connection, made: RunningExperiment, requests: Iterable[UnitRequest]) -> list[str]:
    """Write the rows of requests in one transaction, as the ledger's writer does; return their ids."""
    sent = [
        each if each.request_id else msgspec.structs.replace(each, request_id=f"req_{next(_numbers):09}")
        for each in requests
    ]
    async with conn.transaction():
        columns: list[Sequence[Any]] = [
            [each.request_id for each in sent],
            [each.unit for each in sent],
            [each.epoch for each in sent],
            [each.arm for each in sent],
            [each.is_delivered for each in sent],
            [each.at for each in sent],
            [each.api_key_id for each in sent],
            [each.stream for each in sent],
            [each.gateway for each in sent],
        ]
        await conn.execute(_REQUESTS, made.project_id, made.id, *columns)
        await conn.fetchval(_USAGE, msgspec.json.encode([_event(made, each) for each in sent]).decode())
    return [each.request_id for each in sent]


def _event(made: RunningExperiment, sent: UnitRequest) -> dict[str, Any]:
    event = UsageEvent(
        request_id=sent.request_id,
        attempt=sent.attempt,
        organization_id=made.organization_id,
        project_id=made.project_id,
        api_key_id=sent.api_key_id,
        endpoint="chat.completions",
        model="tiny",
        adapter_id=None,
        adapter_version=None,
        adapter_digest=None,
        stream=sent.stream,
        prompt_tokens=7,
        cached_tokens=0,
        completion_tokens=sent.tokens,
        discarded_tokens=0,
        finish_reason=sent.finish_reason,
        queue_ms=sent.queue_ms,
        prefill_ms=3.25,
        decode_ms=sent.decode_ms,
        ttft_ms=sent.ttft_ms,
        latency_ms=sent.latency_ms,
        adapter_load_bytes=0,
        created_at=sent.at,
        finished_at=sent.at,
    )
    return msgspec.structs.asdict(event) | {
        "experiment_id": made.id,
        "experiment_version": 1,
        "experiment_arm": sent.arm,
        "experiment_epoch": sent.epoch,
        "experiment_delivered": sent.is_delivered,
    }


_REFUSAL = """
    INSERT INTO experiment_requests (
        request_id, project_id, experiment_id, digest, epoch, arm, is_delivered, num_refused, created_at, api_key_id,
        endpoint, stream, service_tier, gateway)
    VALUES ($1, $2, $3, $4, $5, $6, true, $7, $8, $9, 'chat.completions', $10, 'default', $11)
"""
_REFUSAL_EVENT = """
    INSERT INTO experiment_events (experiment_id, kind, request_id, created_at) VALUES ($1, 'refusal', $2, $3)
"""


async def refuse(conn: Connection, made: RunningExperiment, sent: UnitRequest, num: int = 1) -> None:
    """Write refused requests of a unit, as gateways do."""
    request_id = f"req_{next(_numbers):09}"
    async with conn.transaction():
        origin = sent.api_key_id, sent.stream, sent.gateway
        values = made.project_id, made.id, sent.unit, sent.epoch, sent.arm, num, sent.at, *origin
        await conn.execute(_REFUSAL, request_id, *values)
        await conn.execute(_REFUSAL_EVENT, made.id, request_id, sent.at)


_VOTE = """
    INSERT INTO feedback AS f (id, project_id, request_id, digest, metric, source, value, fingerprint, occurred_at)
    VALUES ($1, $2, $3, $4, $5, $9, $6, $7, $8)
    ON CONFLICT (project_id, request_id, digest, metric, source) DO UPDATE SET
        value = excluded.value, occurred_at = excluded.occurred_at, withdrawn_at = NULL
    RETURNING id
"""
_VOTE_EVENT = """
    INSERT INTO experiment_events (experiment_id, kind, feedback_id, created_at) VALUES ($1, 'feedback', $2, $3)
"""
_FIRST_VOTES = """
    WITH cast_now AS (
        INSERT INTO feedback (id, project_id, request_id, metric, source, value, fingerprint, occurred_at)
        SELECT v.id, $2, v.request_id, 'paid', $7, v.value, '', v.at
        FROM unnest($3::text[], $4::text[], $5::bigint[], $6::timestamptz[]) AS v (id, request_id, value, at)
        RETURNING id, occurred_at
    )
    INSERT INTO experiment_events (experiment_id, kind, feedback_id, created_at)
    SELECT $1, 'feedback', id, occurred_at FROM cast_now
"""


async def vote_once_each(
    conn: Connection,
    made: RunningExperiment,
    request_ids: Sequence[str],
    values: Sequence[int],
    at: datetime.datetime,
    source: Source = "user",
) -> None:
    """Write the first vote on each of some requests, by the metric `paid`, in one statement."""
    ids, times = [new_id("fb") for _ in request_ids], [at] * len(request_ids)
    await conn.execute(_FIRST_VOTES, made.id, made.project_id, ids, request_ids, values, times, source)


_WITHDRAW = "UPDATE feedback SET withdrawn_at = now() WHERE id = $1"


async def vote(
    conn: Connection,
    made: RunningExperiment,
    value: int,
    *,
    request_id: str | None = None,
    digest: bytes | None = None,
    metric: str = "paid",
    at: datetime.datetime = NOW,
    source: Source = "user",
) -> str:
    """Write a vote, or a new value of an earlier one, as the feedback API does; return its id.

    request_id, digest: the request or the unit that the vote is about; one of them is None.
    """
    async with conn.transaction():
        values = made.project_id, request_id, digest, metric, value, b"", at, source
        feedback_id: str = await conn.fetchval(_VOTE, new_id("fb"), *values)
        await conn.execute(_VOTE_EVENT, made.id, feedback_id, at)
    return feedback_id


_VOTES = """
    WITH cast_now AS (
        INSERT INTO feedback (id, project_id, request_id, metric, source, value, fingerprint, occurred_at)
        SELECT 'fb_' || r, $1, r, 'paid', 'user', $4, '', $5 FROM unnest($3::text[]) AS r
        RETURNING id
    )
    INSERT INTO experiment_events (experiment_id, kind, feedback_id, created_at)
    SELECT $2, 'feedback', id, $5 FROM cast_now
"""


async def vote_for_each(
    conn: Connection, made: RunningExperiment, request_ids: Sequence[str], value: int, *, at: datetime.datetime
) -> None:
    """Write one vote on each of some requests."""
    await conn.execute(_VOTES, made.project_id, made.id, request_ids, value, at)


async def withdraw(conn: Connection, made: RunningExperiment, feedback_id: str) -> None:
    """Withdraw a vote."""
    async with conn.transaction():
        await conn.execute(_WITHDRAW, feedback_id)
        await conn.execute(_VOTE_EVENT, made.id, feedback_id, NOW)


async def keep_books(database: Database) -> None:
    """Count all waiting events, and close all windows that are over."""
    await ExperimentBookkeeper(database).work()


async def verified(database: Database, made: RunningExperiment) -> Verification:
    """Recount an experiment from its rows; return the comparison with its sums."""
    async with database.acquire() as conn:
        return await verify(conn, made.id)
