"""Rows of one experiment as exports write them, a batch at a time, each in a total order of its own."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.db.experiments.units import decode_state, instant

if TYPE_CHECKING:
    from gateway.db.pool import Connection

ROWS_PER_BATCH = 250
MILLION = 1_000_000

_VOTES = msgspec.json.Encoder(order="sorted")


class ExposureRow(msgspec.Struct, frozen=True):
    """A unit that was exposed, as warehouse tools read assignments."""

    timestamp: datetime.datetime
    """The time of the first exposure; where the ledger has none yet, the time at which a gateway noted it."""
    experiment_id: str
    variation_id: str
    """The name of the arm."""
    unit_digest: str
    """The digest of the unit in hexadecimal. The unit itself is stored nowhere."""
    epoch: int
    """The epoch that chose the arm."""


class OutcomeRow(msgspec.Struct, frozen=True):
    """The outcomes of a unit within its window, as sums over its requests. Times are in microseconds."""

    experiment_id: str
    unit_digest: str
    """The digest of the unit in hexadecimal."""
    variation_id: str
    """The name of the arm."""
    epoch: int
    """The epoch that chose the arm."""
    first_exposure: datetime.datetime
    closes_at: datetime.datetime
    """The end of the unit's outcome window."""
    is_closed: bool
    """True if the window has ended, and the outcomes are in the results."""
    is_delivered: bool
    """True if all requests got the arm's whole treatment."""
    num_requests: int
    num_errors: int
    num_refusals: int
    num_cut: int
    """Requests that ended because they reached their maximum number of tokens."""
    cost_nanos: int
    """The cost in billionths of the currency."""
    prompt_tokens: int
    completion_tokens: int
    ttft_us: int
    """The sum of the times to the first token."""
    num_ttft: int
    """Requests that got a first token."""
    token_us: int
    """The sum over requests of the mean time per token."""
    num_token_times: int
    """Requests that have a time per token."""
    queue_us: int
    """The sum of the times in the engines' queues."""
    engine_us: int
    """The sum of the times that engines computed."""
    num_votes: int
    """Votes of people and programs, without those of judges."""
    votes: str
    """JSON: by metric, the sum of the votes in the metric's integers, and their number; a judge's votes are listed
    under the metric's name and `:judge`."""


class FeedbackRow(msgspec.Struct, frozen=True):
    """A vote about a request or a unit of the experiment. Comments are not exported."""

    id: str
    experiment_id: str
    metric: str
    source: str
    """The kind of voter."""
    value: float
    """The vote as a number."""
    label: str | None
    """The label that was voted for; None where the metric has none."""
    request_id: str | None
    """The request that the vote is about; None for a vote about a unit."""
    unit_digest: str
    """The digest of the unit in hexadecimal."""
    is_in_window: bool
    """True if the vote was cast within the unit's outcome window."""
    occurred_at: datetime.datetime
    received_at: datetime.datetime


_UNITS = """
    SELECT digest, epoch, arm, noted_at, state, closes_at, is_closed FROM experiment_units
    WHERE experiment_id = $1 AND ($2 OR state IS NOT NULL) ORDER BY digest
"""


async def exposure_rows(conn: Connection, experiment_id: str, arms: list[str]) -> AsyncIterator[list[ExposureRow]]:
    """Yield batches of exposures in the order of digests. arms: the names of the arms. Call it within a transaction."""
    cursor = await conn.cursor(_UNITS, experiment_id, True)
    while rows := await cursor.fetch(ROWS_PER_BATCH):
        yield [_exposure(experiment_id, arms, row) for row in rows]


async def outcome_rows(conn: Connection, experiment_id: str, arms: list[str]) -> AsyncIterator[list[OutcomeRow]]:
    """Yield batches of outcomes in the order of digests, of the units that have requests in the ledger.

    arms: the names of the arms. Call it within a transaction.
    """
    cursor = await conn.cursor(_UNITS, experiment_id, False)
    while rows := await cursor.fetch(ROWS_PER_BATCH):
        yield [_outcome(experiment_id, arms, row) for row in rows]


_FEEDBACK = """
    SELECT f.id, f.metric, f.source, f.value, f.label, f.request_id, a.digest, f.occurred_at, f.received_at, m.type,
           u.state, u.closes_at
    FROM (SELECT f.id, r.digest FROM experiment_requests r
              JOIN feedback f ON f.request_id = r.request_id AND f.project_id = r.project_id
          WHERE r.experiment_id = $1
          UNION
          SELECT f.id, u.digest FROM experiment_units u
              JOIN experiments e ON e.id = u.experiment_id
              JOIN feedback f ON f.digest = u.digest AND f.project_id = e.project_id
          WHERE u.experiment_id = $1
          UNION  -- requests of long ago are deleted, and the sums have what was voted about them
          SELECT c.feedback_id, c.digest FROM feedback_counted c WHERE c.experiment_id = $1) a
        JOIN feedback f ON f.id = a.id
        JOIN feedback_metrics m ON m.project_id = f.project_id AND m.name = f.metric
        LEFT JOIN experiment_units u ON u.experiment_id = $1 AND u.digest = a.digest
    WHERE f.withdrawn_at IS NULL
    ORDER BY f.received_at, f.id COLLATE "C"
"""


async def feedback_rows(conn: Connection, experiment_id: str) -> AsyncIterator[list[FeedbackRow]]:
    """Yield batches of feedback in the order in which votes came. Call it within a transaction."""
    cursor = await conn.cursor(_FEEDBACK, experiment_id)
    while rows := await cursor.fetch(ROWS_PER_BATCH):
        yield [_feedback(experiment_id, row) for row in rows]


def _exposure(experiment_id: str, arms: list[str], row: Any) -> ExposureRow:
    at = row["noted_at"] if row["state"] is None else instant(decode_state(row["state"]).first_us)
    return ExposureRow(at, experiment_id, arms[row["arm"]], row["digest"].hex(), row["epoch"])


def _outcome(experiment_id: str, arms: list[str], row: Any) -> OutcomeRow:
    state = decode_state(row["state"])
    counts = msgspec.structs.asdict(state.counts)
    return OutcomeRow(
        experiment_id=experiment_id,
        unit_digest=row["digest"].hex(),
        variation_id=arms[state.arm],
        epoch=state.epoch,
        first_exposure=instant(state.first_us),
        closes_at=row["closes_at"],
        is_closed=row["is_closed"],
        is_delivered=state.is_delivered,
        votes=_VOTES.encode(state.votes).decode(),
        **{name: counts[name] for name in OutcomeRow.__struct_fields__ if name in counts},
    )


def _is_within(row: Any) -> bool:
    if row["state"] is None:
        return False
    return bool(instant(decode_state(row["state"]).first_us) <= row["occurred_at"] < row["closes_at"])


def _feedback(experiment_id: str, row: Any) -> FeedbackRow:
    return FeedbackRow(
        row["id"],
        experiment_id,
        row["metric"],
        row["source"],
        float(row["value"]) if row["type"] == "boolean" else row["value"] / MILLION,
        row["label"],
        row["request_id"],
        row["digest"].hex(),
        _is_within(row),
        row["occurred_at"],
        row["received_at"],
    )
