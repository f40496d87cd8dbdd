"""The facts about experiments that the bookkeeper reads, and the changes that it makes to experiments."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.db.experiments.notes import SILENT_FOR
from gateway.domain.experiments.definition import Experiment
from gateway.domain.experiments.effects import Kind

if TYPE_CHECKING:
    from gateway.db.pool import Connection

_decode = msgspec.json.Decoder(Experiment).decode


class Scope(msgspec.Struct, frozen=True):
    """An experiment that has started, with the facts on which its units and sums depend."""

    id: str
    project_id: str
    organization_id: str
    state: str
    version: int
    definition: Experiment
    tables: tuple[bytes, ...]
    """The table of each epoch (`assignment.Split.tables`)."""
    started_at: datetime.datetime
    stopped_at: datetime.datetime | None
    overruled: frozenset[tuple[str, str]]
    """Pairs of a guardrail's metric and an arm whose harm no longer pauses the experiment, since a person started
    the experiment again after the guardrail had found harm."""
    own: Mapping[str, Kind]
    """The kind of each of the project's own metrics, by the metric's name."""
    has_alike: bool
    """True if other experiments of the project that have started take their units from the same place."""

    @property
    def window_us(self) -> int:
        """The length of the outcome window in microseconds."""
        return self.definition.analysis.outcome_window_seconds * 1_000_000


_FIND = """
    SELECT e.id, e.project_id, p.organization_id, e.state, e.version, e.definition, e.tables, e.started_at,
           e.stopped_at, e.overruled,
           (SELECT json_object_agg(m.name, m.kind) FROM feedback_metrics m WHERE m.project_id = e.project_id) AS own,
           EXISTS (SELECT FROM experiments o WHERE o.project_id = e.project_id AND o.id <> e.id
                   AND o.started_at IS NOT NULL AND o.definition -> 'unit' = e.definition -> 'unit') AS has_alike
    FROM experiments e JOIN projects p ON p.id = e.project_id
    WHERE e.id = ANY ($1) AND e.started_at IS NOT NULL
"""


async def find_scopes(conn: Connection, experiment_ids: Collection[str]) -> dict[str, Scope]:
    """Return the scopes of those of the given experiments that have started, by id."""
    return {row["id"]: _scope(row) for row in await conn.fetch(_FIND, list(experiment_ids))}


_GUARDED = """
    SELECT id FROM experiments
    WHERE state = 'running' AND definition @> '{"metrics": {"guardrails": [{"action": "pause"}]}}'
"""


async def guarded_experiments(conn: Connection) -> set[str]:
    """Return the running experiments that a guardrail may pause."""
    return {row["id"] for row in await conn.fetch(_GUARDED)}


_PAUSE = """
    UPDATE experiments SET state = 'paused', why = $2, changed_at = now() WHERE id = $1 AND state = 'running'
    RETURNING true
"""


async def pause_experiment(conn: Connection, experiment_id: str, why: object) -> bool:
    """Pause an experiment for a reason; False where it does not run any more."""
    return bool(await conn.fetchval(_PAUSE, experiment_id, msgspec.json.encode(why).decode()))


_NOTIFY = """
    INSERT INTO webhook_deliveries (id, webhook_id, body)
    SELECT 'msg_' || replace(gen_random_uuid()::text, '-', ''), w.id, json_build_object(
        'type', $2::text, 'timestamp', to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
        'data', $3::json)::text
    FROM webhooks w WHERE w.organization_id = $1 AND $2 = ANY (w.events)
"""


async def notify_webhooks(conn: Connection, organization_id: str, event: str, data: object) -> None:
    """Queue a message for the webhooks of an organization that are called for this event."""
    await conn.execute(_NOTIFY, organization_id, event, msgspec.json.encode(data).decode())


class Reweighting(msgspec.Struct, frozen=True):
    """An experiment that enrols no new units until its next weights are in force. For the fields see `Split`."""

    id: str
    seed: bytes
    slots: bytes
    tables: Sequence[bytes]
    ended: Sequence[int]
    """The indexes of arms that have ended."""
    next_weights: Sequence[int]


_REWEIGHTING = """
    SELECT id, seed, slots, tables, ended, next_weights FROM experiments e
    WHERE next_weights IS NOT NULL AND closed_at < clock_timestamp() - $1::interval
      AND (closed_at < clock_timestamp() - $3::interval OR NOT EXISTS (
               SELECT FROM experiment_gateways g WHERE g.noted_until < e.closed_at + $2::interval)
           AND NOT EXISTS (
               SELECT FROM (SELECT queued_at FROM experiment_events ORDER BY id LIMIT 1) oldest
               WHERE oldest.queued_at < e.closed_at + $2::interval))
    ORDER BY id LIMIT 1 FOR UPDATE OF e SKIP LOCKED
"""


async def next_reweighting(
    conn: Connection, closed_for: datetime.timedelta, known_after: datetime.timedelta
) -> Reweighting | None:
    """Return an experiment whose enrolment has been closed for `closed_for`, locked until the transaction ends.

    All exposures up to `known_after` after the closing are written and in the ledger by then; gateways that have been
    silent for `SILENT_FOR` are not waited for. None where no experiment is that far.
    """
    row = await conn.fetchrow(_REWEIGHTING, closed_for, known_after, SILENT_FOR)
    return None if row is None else Reweighting(**row)


_REWEIGHTED = """
    UPDATE experiments SET tables = $2, slots = $3, exposed_at = clock_timestamp(), enrolling = true,
        next_weights = NULL, closed_at = NULL, changed_at = now()
    WHERE id = $1
"""


async def write_reweighted(conn: Connection, experiment_id: str, tables: Sequence[bytes], slots: bytes) -> None:
    """Open enrolment again with a new epoch's table; units that were exposed by now keep their epoch."""
    await conn.execute(_REWEIGHTED, experiment_id, list(tables), slots)


@lru_cache(maxsize=4_096)
def _definition(text: str) -> Experiment:
    return _decode(text)


def _scope(row: Any) -> Scope:
    fields = dict(row)
    fields["own"] = {} if row["own"] is None else msgspec.json.decode(row["own"])
    fields["definition"] = _definition(row["definition"])
    fields["tables"] = tuple(row["tables"])
    overruled = msgspec.json.decode(row["overruled"])
    fields["overruled"] = frozenset((each["metric"], each["arm"]) for each in overruled)
    return Scope(**fields)
