"""Experiments as gateways serve them: names, splits, the targets of arms, and units that keep an earlier epoch."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class LiveArm(msgspec.Struct, frozen=True):
    """The target of one arm, as it was pinned at the start.

    An arm whose version or pool is gone has no digest or no pool.
    """

    arm: int
    """The index of the arm."""
    pool_name: str
    """The name of the pool, also where the pool is gone."""
    has_pool: bool
    """False once the pool is removed."""
    adapter_id: str | None
    """The id of the adapter; None: the arm serves the base model of the pool."""
    adapter_name: str | None
    version: int | None
    """The number of the adapter's version; None for a base model."""
    digest: str | None
    """The digest of the version's content; None for a base model, and where the version cannot be served any more."""
    defaults: str | None
    """The defaults of the adapter, as JSON."""
    fits: bool
    """True if the pool serves the base model that the adapter is for."""
    treatment: str | None
    """The treatment of the arm, as JSON; None: the treatment of the definition."""


class LiveExperiment(msgspec.Struct, frozen=True):
    """An experiment that requests may name."""

    id: str
    name: str
    model: str
    """The model id by which requests name the experiment."""
    state: str
    definition: str
    """The `definition.Experiment`, as JSON."""
    version: int
    """The number of the definition's latest change."""
    seed: bytes
    layer_seed: bytes
    holdout_seed: bytes | None
    holdout_size: int | None
    """The part of units that is held out, in 10,000ths; None without a holdout."""
    slots: bytes
    """The `slots` of `assignment.Split`."""
    tables: list[bytes]
    """The `tables` of `assignment.Split`."""
    ended: list[int]
    """The indexes of the arms that have ended."""
    enrolling: bool
    """False while no new unit gets an arm, since weights change."""
    exposed_at: datetime.datetime | None
    """The instant up to which units that were noted keep the epoch of their first exposure; None: no epoch was
    replaced."""
    arms: list[LiveArm]
    """The arms in the order of their indexes, the shadow arm last."""


# A version of somebody else, or of an adapter that was removed, is not there.
_ARMS = """
    SELECT r.arm, p.name AS pool_name, p.removed_at IS NULL AS has_pool, r.adapter_id, a.name AS adapter_name,
           r.version, v.digest, a.defaults, r.treatment,
           coalesce(a.base_digest = s.base_digest, true) AS fits
    FROM experiment_arms r JOIN pools p ON p.id = r.pool_id
        LEFT JOIN pool_revisions s ON s.pool_id = p.id AND s.revision = p.revision
        LEFT JOIN adapters a ON a.id = r.adapter_id
        LEFT JOIN adapter_versions v ON v.adapter_id = r.adapter_id AND v.version = r.version AND v.state = 'ready'
            AND a.project_id = $1 AND a.removed_at IS NULL
    WHERE r.experiment_id = $2
    ORDER BY r.arm
"""
_FIND = """
    SELECT e.id, e.name, e.model, e.state, e.definition, e.version, e.seed, l.seed AS layer_seed,
           h.seed AS holdout_seed, h.size AS holdout_size, e.slots, e.tables, e.ended, e.enrolling, e.exposed_at
    FROM experiments e
        JOIN experiment_layers l ON l.project_id = e.project_id AND l.name = e.layer
        LEFT JOIN experiment_holdouts h ON h.project_id = e.project_id AND h.name = e.holdout
    WHERE e.project_id = $1 AND e.id = $2 AND e.slots IS NOT NULL
"""


async def find_live(conn: Connection, project_id: str, experiment_id: str) -> LiveExperiment | None:
    """Return an experiment of a project that has started, with its arms as of one instant."""
    async with conn.transaction(isolation="repeatable_read", readonly=True):
        row = await conn.fetchrow(_FIND, project_id, experiment_id)
        if row is None:
            return None
        arms = [LiveArm(**arm) for arm in await conn.fetch(_ARMS, project_id, experiment_id)]
    return LiveExperiment(**row, arms=arms)


# Two values of a million units, and not a million rows to decode. In the order of the primary key. By epochs and not by
# times, since clocks differ: an epoch that no slot has any more is one that its units keep.
_EXPOSED = """
    SELECT string_agg(substr(u.digest, 1, 8), ''::bytea ORDER BY u.digest) AS keys,
           string_agg(set_byte('\\x00'::bytea, 0, u.epoch::integer), ''::bytea ORDER BY u.digest) AS epochs
    FROM experiment_units u JOIN experiments e ON e.id = u.experiment_id
    WHERE u.experiment_id = $1
      AND (NOT e.enrolling OR position(set_byte('\\x00'::bytea, 0, u.epoch) IN e.slots) = 0)
"""


async def exposed_digests(conn: Connection, experiment_id: str) -> tuple[bytes, bytes]:
    """Return the units that keep an earlier epoch, and a byte for each unit with the number of that epoch.

    A unit is the first eight bytes of its digest, one unit after the other. While enrolment is closed, return all units
    that were exposed.
    """
    row = await conn.fetchrow(_EXPOSED, experiment_id)
    assert row is not None
    return row["keys"] or b"", row["epochs"] or b""


_FLAGS = """
    SELECT model FROM experiments
    WHERE project_id = $1 AND state IN ('running', 'paused', 'stopped') AND ($2::text IS NULL OR name = $2)
    ORDER BY name COLLATE "C"
"""


async def list_flags(conn: Connection, project_id: str, name: str | None) -> list[str]:
    """Return the model strings of a project's experiments that run, are paused or stopped, in order of name.

    name: the only experiment wanted; None: all.
    """
    return [row["model"] for row in await conn.fetch(_FLAGS, project_id, name)]
