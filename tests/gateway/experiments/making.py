"""Experiments written into a database as the admin API's start writes them, for tests of everything after the start."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from gateway.db.adapters.bases import register_base
from gateway.db.ids import new_id
from gateway.domain.adapters.defaults import NO_DEFAULTS, Defaults
from gateway.domain.experiments.allocation import first_split
from gateway.domain.experiments.assignment import NUM_BUCKETS, Split
from gateway.domain.experiments.definition import (
    SHADOW_ARM,
    Arm,
    Experiment,
    Guardrail,
    Metrics,
    Primary,
    Shadow,
    Target,
    UnitSource,
)
from gateway.pools.first_pool import make_pool

if TYPE_CHECKING:
    from gateway.db.pool import Connection

KEY = b"k" * 32


async def project_key(project_id: str) -> bytes:
    """Return a fixed secret for the project's units, for a resolver without a database."""
    return KEY


class ArmOf(msgspec.Struct, frozen=True):
    """One arm: the base model of a pool, or a version of the project's adapter."""

    name: str
    adapter: str | None = None
    version: int = 1
    weight: int = 1
    pool: str | None = None
    """The pool of this arm, where it differs from the other arms' pool."""
    defaults: Defaults = NO_DEFAULTS
    mode: Literal["fill", "replace"] = "fill"


class StartedExperiment(msgspec.Struct, frozen=True):
    """A started experiment."""

    id: str
    definition: Experiment
    split: Split


async def make_pool_row(conn: Connection, name: str, base_digest: str) -> None:
    """Make a pool that no engine serves, in the caller's transaction: for arms in tests without gateways."""
    await register_base(conn, base_digest, name)
    await make_pool(conn, name, model="demo", folder=Path("/m"), base_digest=base_digest, num_replicas=0)


_POOL = "SELECT id FROM pools WHERE name = $1 AND removed_at IS NULL"
_LAYER = """
    INSERT INTO experiment_layers (project_id, name, seed) VALUES ($1, $2, $3)
    ON CONFLICT (project_id, name) DO UPDATE SET name = excluded.name RETURNING seed
"""
_EXPERIMENT = """
    INSERT INTO experiments (id, project_id, name, model, state, definition, layer, seed, slots, tables, started_at)
    VALUES ($1, $2, $3, $4, 'running', $5, $6, $7, $8, $9, now())
"""
_ARM = """
    INSERT INTO experiment_arms (experiment_id, arm, pool_id, adapter_id, version)
    VALUES ($1, $2, $3, (SELECT id FROM adapters WHERE project_id = $4 AND name = $5 AND removed_at IS NULL), $6)
"""
_ALIAS = """
    INSERT INTO model_aliases (id, project_id, name, target_kind, experiment_id) VALUES ($1, $2, $3, 'experiment', $4)
    ON CONFLICT (project_id, name) DO UPDATE SET
        target_kind = 'experiment', experiment_id = excluded.experiment_id, adapter_id = NULL, version = NULL,
        pool_id = NULL, treatment = NULL, moved_at = now()
"""


async def start_experiment(
    conn: Connection,
    project_id: str,
    arms: Sequence[ArmOf],
    *,
    pool: str = "tiny",
    name: str = "support-tone",
    model: str = "support-bot",
    unit: str = "user",
    coverage: int = NUM_BUCKETS,
    layer: str = "default",
    seed: bytes | None = None,
    shadow: ArmOf | None = None,
    share: int = NUM_BUCKETS,
    **fields: Any,
) -> StartedExperiment:
    """Start an experiment of a project over slots 0 to `coverage` of its layer, which is made where it does not exist.

    pool: the pool that serves arms that name none.
    shadow: the shadow arm, which gets `share` of the requests.
    fields: more of the definition.
    """
    targets = [_target(arm, pool) for arm in arms]
    if shadow is not None:
        fields["shadow"] = Shadow(shadow.name, _target(shadow, pool), share)
    definition = Experiment(
        name,
        model,
        UnitSource(unit),
        tuple(Arm(arm.name, arm.weight, target) for arm, target in zip(arms, targets, strict=True)),
        fields.pop("metrics", Metrics((Primary("cost_nanos", "decrease"),), (Guardrail("error_rate", "pause"),))),
        coverage=coverage,
        layer=layer,
        **fields,
    )
    layer_seed = await conn.fetchval(_LAYER, project_id, layer, secrets.token_bytes(32))
    split = first_split(seed or secrets.token_bytes(32), layer_seed, range(coverage), [arm.weight for arm in arms])
    made = StartedExperiment(new_id("exp"), definition, split)
    async with conn.transaction():
        text = msgspec.json.encode(definition).decode()
        values = (made.id, project_id, name, model, text, layer, split.seed, split.slots, list(split.tables))
        await conn.execute(_EXPERIMENT, *values)
        for at, arm in [*enumerate(arms), *([] if shadow is None else [(SHADOW_ARM, shadow)])]:
            version = None if arm.adapter is None else arm.version
            pool_id = await conn.fetchval(_POOL, arm.pool or pool)
            assert pool_id is not None, f"there is no pool {arm.pool or pool}"
            await conn.execute(_ARM, made.id, at, pool_id, project_id, arm.adapter, version)
        await conn.execute(_ALIAS, new_id("alias"), project_id, model, made.id)
    return made


def _target(arm: ArmOf, pool: str) -> Target:
    base = arm.pool or pool
    model = base if arm.adapter is None else f"{base}:{arm.adapter}@{arm.version}"
    return Target(model, arm.defaults, arm.mode)


_SET_STATE = "UPDATE experiments SET state = $2, changed_at = now() WHERE id = $1"


async def set_state(conn: Connection, experiment_id: str, state: str) -> None:
    """Set the state of an experiment: running, paused or stopped."""
    await conn.execute(_SET_STATE, experiment_id, state)


_SET_SPLIT = """
    UPDATE experiments SET slots = $2, tables = $3, ended = $4, enrolling = $5, version = version + 1,
        exposed_at = CASE WHEN $6 THEN clock_timestamp() ELSE exposed_at END, changed_at = now()
    WHERE id = $1
"""


async def set_split(conn: Connection, experiment_id: str, split: Split, *, keeps_exposed: bool = False) -> None:
    """Change the split of an experiment's traffic among its arms.

    keeps_exposed: whether units that were exposed before keep their epoch.
    """
    values = split.slots, list(split.tables), list(split.ended), split.enrolling, keeps_exposed
    await conn.execute(_SET_SPLIT, experiment_id, *values)
