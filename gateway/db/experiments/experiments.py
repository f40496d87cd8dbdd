"""Experiments of projects: their definitions, states and splits.

The targets of arms, layers and holdouts have modules of their own. Every change is made under the lock of the project's
row, so that experiments of one project change one after another; a change of a split locks the experiment's row as well
(`lock_experiment`).
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.db.ids import new_id
from gateway.domain.experiments.assignment import Exposed, Holdout, Split
from gateway.domain.experiments.definition import Experiment
from gateway.domain.experiments.states import State

if TYPE_CHECKING:
    import asyncpg

    from gateway.db.pool import Connection

_DEFINITION = msgspec.json.Decoder(Experiment)


class ExperimentRow(msgspec.Struct, frozen=True, kw_only=True):
    """An experiment with the seeds of its layer and its holdout; in lists, seeds and split are left out."""

    id: str
    project_id: str
    name: str
    model: str
    state: State
    definition: Experiment
    version: int
    """The number of the definition's latest change."""
    seed: bytes
    """The seed by which units get arms."""
    layer_seed: bytes
    """The seed by which units get slots of the layer."""
    holdout_seed: bytes | None
    """The seed of the holdout; None: the experiment has no holdout."""
    holdout_size: int | None
    """The part of units that is held out, in 10,000ths; None without a holdout."""
    slots: bytes | None
    """The `slots` of `assignment.Split`; None before the start, and in lists."""
    tables: Sequence[bytes] | None
    """The `tables` of `assignment.Split`."""
    ended: Sequence[int]
    """The indexes of arms that have ended."""
    enrolling: bool
    """False while weights change: units that are not exposed yet get the control."""
    next_weights: Sequence[int] | None
    """The weights of the next epoch, while enrolment is closed for them."""
    closed_at: datetime.datetime | None
    """The time when enrolment was closed."""
    exposed_at: datetime.datetime | None
    """Units that were noted up to this instant keep the epoch of their first exposure."""
    why: dict[str, Any] | None
    """The guardrail's finding that paused or stopped the experiment; None where a person did."""
    decided_arm: int | None
    """The index of the arm that was chosen in the end; None before that."""
    created_at: datetime.datetime
    started_at: datetime.datetime | None
    stopped_at: datetime.datetime | None
    decided_at: datetime.datetime | None
    changed_at: datetime.datetime
    """The time of the last change of the row."""


def split_of(row: ExperimentRow, exposed: Exposed | None = None) -> Split:
    """Return the split of an experiment that has started. exposed: the units that keep an earlier epoch."""
    assert row.slots is not None and row.tables is not None, "the experiment has started"
    return Split(
        row.seed,
        row.layer_seed,
        row.slots,
        tuple(row.tables),
        exposed,
        tuple(row.ended),
        row.enrolling,
        row.state != "running",
        holdout_of(row),
    )


def holdout_of(row: ExperimentRow) -> Holdout | None:
    """Return the holdout of an experiment."""
    if row.holdout_seed is None or row.holdout_size is None:
        return None
    return Holdout(row.holdout_seed, row.holdout_size)


_FIND = """
    SELECT e.id, e.project_id, e.name, e.model, e.state, e.definition, e.version, e.seed, l.seed AS layer_seed,
           h.seed AS holdout_seed, h.size AS holdout_size, e.slots, e.tables, e.ended, e.enrolling, e.next_weights,
           e.closed_at, e.exposed_at, e.why, e.decided_arm, e.created_at, e.started_at, e.stopped_at, e.decided_at,
           e.changed_at
    FROM experiments e
        JOIN experiment_layers l ON (l.project_id, l.name) = (e.project_id, e.layer)
        LEFT JOIN experiment_holdouts h ON (h.project_id, h.name) = (e.project_id, e.holdout)
    WHERE e.project_id = $1 AND e.id = $2
"""


async def find_experiment(conn: Connection, project_id: str, experiment_id: str) -> ExperimentRow | None:
    """Return the project's experiment with this id."""
    row = await conn.fetchrow(_FIND, project_id, experiment_id)
    return _experiment(row) if row else None


# Usage and notes may still refer to the experiment.
_LOCK = "SELECT FROM experiments WHERE project_id = $1 AND id = $2 FOR NO KEY UPDATE"


async def lock_experiment(conn: Connection, project_id: str, experiment_id: str) -> ExperimentRow | None:
    """Return the project's experiment with this id, which nobody else changes until the transaction ends."""
    await conn.execute(_LOCK, project_id, experiment_id)
    return await find_experiment(conn, project_id, experiment_id)


_LIST = """
    SELECT e.id, e.project_id, e.name, e.model, e.state, e.definition, e.version, e.seed, ''::bytea AS layer_seed,
           NULL AS holdout_seed, NULL AS holdout_size, NULL AS slots, NULL AS tables, e.ended, e.enrolling,
           e.next_weights, e.closed_at, e.exposed_at, e.why, e.decided_arm, e.created_at, e.started_at, e.stopped_at,
           e.decided_at, e.changed_at
    FROM experiments e
    WHERE e.project_id = $1
      AND ($2::text IS NULL OR (e.created_at, e.id) >
           (SELECT created_at, id FROM experiments WHERE project_id = $1 AND id = $2))
      AND ($4::text IS NULL OR e.state = $4)
    ORDER BY e.created_at, e.id LIMIT $3
"""


async def list_experiments(
    conn: Connection, project_id: str, *, after: str | None, limit: int, state: str | None = None
) -> list[ExperimentRow]:
    """Return experiments without seeds and splits, oldest first, that follow the one with the id `after`.

    state: the only state to return; None: all.
    """
    return [_experiment(row) for row in await conn.fetch(_LIST, project_id, after, limit, state)]


_COUNT = """
    SELECT count(*) FILTER (WHERE state <> 'archived') AS current, count(*) AS ever FROM experiments
    WHERE project_id = $1
"""


async def count_experiments(conn: Connection, project_id: str) -> tuple[int, int]:
    """Return how many experiments the project has that are not archived, and how many in all."""
    row = await conn.fetchrow(_COUNT, project_id)
    return (row["current"], row["ever"]) if row else (0, 0)


_CREATE = """
    INSERT INTO experiments (id, project_id, name, model, state, definition, layer, holdout, seed)
    VALUES ($1, $2, $3, $4, 'draft', $5, $6, $7, $8)
    ON CONFLICT (project_id, name) DO NOTHING RETURNING id
"""


async def create_experiment(conn: Connection, project_id: str, definition: Experiment, seed: bytes) -> str | None:
    """Return the id of a new draft; None where the project has an experiment of this name. Layer and holdout exist."""
    id: str | None = await conn.fetchval(
        _CREATE,
        new_id("exp"),
        project_id,
        definition.name,
        definition.model,
        _json(definition),
        definition.layer,
        definition.holdout,
        seed,
    )
    return id


_HAS_NAME = "SELECT EXISTS (SELECT FROM experiments WHERE project_id = $1 AND name = $2 AND id <> $3)"


async def has_other(conn: Connection, project_id: str, name: str, experiment_id: str) -> bool:
    """Tell whether another experiment of the project has this name."""
    return bool(await conn.fetchval(_HAS_NAME, project_id, name, experiment_id))


_REDEFINE = """
    UPDATE experiments SET definition = $2, name = $3, model = $4, layer = $5, holdout = $6, version = version + 1,
        changed_at = now()
    WHERE id = $1
"""


async def replace_definition(conn: Connection, experiment_id: str, definition: Experiment) -> None:
    """Replace the definition of an experiment, and raise its version by one.

    The layer and the holdout it names have to exist.
    """
    await conn.execute(
        _REDEFINE,
        experiment_id,
        _json(definition),
        definition.name,
        definition.model,
        definition.layer,
        definition.holdout,
    )


_START = """
    UPDATE experiments SET state = 'running', slots = $2, tables = $3, started_at = now(), changed_at = now()
    WHERE id = $1
"""


async def start_experiment(conn: Connection, experiment_id: str, split: Split) -> None:
    """Set a draft running with its first split."""
    await conn.execute(_START, experiment_id, split.slots, list(split.tables))


_SET_SPLIT = "UPDATE experiments SET slots = $2, tables = $3, ended = $4, changed_at = now() WHERE id = $1"


async def set_split(conn: Connection, experiment_id: str, split: Split) -> None:
    """Replace the split of an experiment, which moves no unit that was exposed."""
    await conn.execute(_SET_SPLIT, experiment_id, split.slots, list(split.tables), list(split.ended))


_CLOSE = """
    UPDATE experiments SET enrolling = false, next_weights = $2, closed_at = clock_timestamp(),
        exposed_at = clock_timestamp(), changed_at = now()
    WHERE id = $1
"""


async def close_enrolment(conn: Connection, experiment_id: str, weights: Sequence[int]) -> None:
    """Give the control to units that are not exposed yet, until the bookkeeper has read the exposed ones.

    From then on the new weights hold for all other units.
    """
    await conn.execute(_CLOSE, experiment_id, list(weights))


_SET_STATE = """
    UPDATE experiments SET state = $2, changed_at = now(),
        overruled = CASE WHEN $2 = 'running' AND why IS NOT NULL THEN overruled || why ELSE overruled END,
        why = CASE WHEN $2 = 'running' THEN NULL ELSE why END,
        stopped_at = CASE WHEN $2 = 'stopped' THEN now() ELSE stopped_at END
    WHERE id = $1
"""


async def set_state(conn: Connection, experiment_id: str, state: State) -> None:
    """Change the state of an experiment that has started: running, paused, stopped or archived.

    One that a guardrail paused and that runs again is not paused for the same harm any more.
    """
    await conn.execute(_SET_STATE, experiment_id, state)


_DECIDE = """
    UPDATE experiments SET state = 'decided', decided_arm = $2, decided_at = now(), changed_at = now() WHERE id = $1
"""


async def set_decided(conn: Connection, experiment_id: str, arm: int) -> None:
    """Record the arm that everybody gets from now on."""
    await conn.execute(_DECIDE, experiment_id, arm)


_DELETE = "DELETE FROM experiments WHERE id = $1 AND state = 'draft'"


async def delete_draft(conn: Connection, experiment_id: str) -> None:
    """Remove an experiment that never started."""
    await conn.execute(_DELETE, experiment_id)


_EPOCH = "SELECT epoch FROM experiment_units WHERE experiment_id = $1 AND digest = $2"


async def find_epoch(conn: Connection, experiment_id: str, digest: bytes) -> int | None:
    """Return the epoch of a unit's first exposure; None where no gateway has noted the unit."""
    epoch: int | None = await conn.fetchval(_EPOCH, experiment_id, digest)
    return epoch


_MODEL_HELD = """
    SELECT name FROM experiments
    WHERE project_id = $1 AND model = $2 AND id <> $3 AND state IN ('running', 'paused', 'stopped')
"""


async def model_holder(conn: Connection, project_id: str, model: str, experiment_id: str) -> str | None:
    """Return the name of another experiment that holds this model string."""
    name: str | None = await conn.fetchval(_MODEL_HELD, project_id, model, experiment_id)
    return name


_DRAFT_OF = """
    SELECT name FROM experiments WHERE project_id = $1 AND model = $2 AND state = 'draft'
    ORDER BY created_at, id LIMIT 1
"""


async def draft_of(conn: Connection, project_id: str, model: str) -> str | None:
    """Return the name of the project's oldest draft that has this model string."""
    name: str | None = await conn.fetchval(_DRAFT_OF, project_id, model)
    return name


def _experiment(row: asyncpg.Record) -> ExperimentRow:
    fields: dict[str, Any] = dict(row)
    definition, why = _DEFINITION.decode(fields.pop("definition")), fields.pop("why")
    return ExperimentRow(definition=definition, why=msgspec.json.decode(why) if why else None, **fields)


def _json(definition: Experiment) -> str:
    return msgspec.json.encode(definition).decode()
