"""Experiments, their requests and units, and metrics of projects, as rows."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import msgspec

from gateway.db.ids import new_id
from gateway.domain.experiments.assignment import NUM_BUCKETS

NUMBERS = itertools.count(1)
DEFINITION: dict[str, Any] = {
    "name": "tone",
    "model": "bot",
    "unit": {"from": "safety_identifier"},
    "arms": [
        {"name": "control", "weight": 1, "target": {"model": "tiny"}},
        {"name": "warm", "weight": 1, "target": {"model": "tiny:pirate"}},
    ],
    "metrics": {"primary": [{"metric": "thumbs_up", "goal": "increase"}]},
    "analysis": {"outcome_window_seconds": 3600, "min_days": 0},
}

_METRIC = """
    INSERT INTO feedback_metrics (project_id, name, type, goal, kind, least, most, labels)
    VALUES ($1, $2, $3, 'increase', 'mean', $4, $5, $6)
"""
_LAYER = "INSERT INTO experiment_layers (project_id, name, seed) VALUES ($1, 'default', $2) ON CONFLICT DO NOTHING"
_EXPERIMENT = """
    INSERT INTO experiments (id, project_id, name, model, state, definition, layer, seed, slots, tables, started_at)
    VALUES ($1, $2, $3, $3, $4, $5, 'default', $6, $7, $8, now())
"""
_REQUEST = """
    INSERT INTO experiment_requests
        (request_id, project_id, experiment_id, digest, epoch, arm, is_delivered, created_at)
    VALUES ($1, $2, $3, $4, 1, 0, true, $5)
"""
_UNIT = "INSERT INTO experiment_units (experiment_id, digest, epoch, arm) VALUES ($1, $2, 1, 0)"


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """Give a connection until the context is left."""
    conn = await asyncpg.connect(dsn)
    try:
        yield conn
    finally:
        await conn.close()


async def put_metrics(conn: asyncpg.Connection, project_id: str) -> None:
    """Add a metric of each type to a project: thumbs_up, stars from 1 to 5, and mood."""
    await conn.execute(_METRIC, project_id, "thumbs_up", "boolean", None, None, None)
    await conn.execute(_METRIC, project_id, "stars", "number", 1_000_000, 5_000_000, None)
    await conn.execute(_METRIC, project_id, "mood", "label", None, None, '{"good": 1000000, "bad": -500000}')


async def put_experiment(conn: asyncpg.Connection, project_id: str, state: str = "running") -> str:
    """Start an experiment over all units, and return its id."""
    experiment_id, name = new_id("exp"), f"exp-{next(NUMBERS)}"
    definition = msgspec.json.encode(DEFINITION | {"name": name, "model": name}).decode()
    await conn.execute(_LAYER, project_id, bytes(32))
    table = bytes(at % 2 for at in range(NUM_BUCKETS))
    await conn.execute(
        _EXPERIMENT, experiment_id, project_id, name, state, definition, bytes(range(32)), b"\1" * NUM_BUCKETS, [table]
    )
    return experiment_id


async def put_request(conn: asyncpg.Connection, project_id: str, experiment_id: str, digest: bytes = b"d" * 16) -> str:
    """Write a request of a unit; return its id."""
    request_id = new_id("req")
    now = datetime.datetime.now(datetime.UTC)
    await conn.execute(_REQUEST, request_id, project_id, experiment_id, digest, now)
    return request_id


async def put_unit(conn: asyncpg.Connection, experiment_id: str, digest: bytes) -> None:
    """Write the row of an exposed unit."""
    await conn.execute(_UNIT, experiment_id, digest)
