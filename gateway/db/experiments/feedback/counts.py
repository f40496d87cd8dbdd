"""The vote of each feedback that is in the sums, and its difference to the feedback's present vote."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import msgspec

from gateway.db.experiments.events import UnitId
from gateway.db.experiments.units import Vote, instant

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class VoteDifference(msgspec.Struct, frozen=True):
    """The two votes of a feedback about a unit: the one in the sums, and the present one."""

    feedback_id: str
    unit: UnitId
    counted: Vote | None
    """The vote in the sums; None: the sums have none."""
    current: Vote | None
    """The present vote; None: the vote was withdrawn."""


# A vote is about the unit of its request or the unit that it names, and about a unit in whose sums it is, whose request
# may be forgotten by now.
_DIFFERENCES = """
    WITH asked AS MATERIALIZED (
        SELECT f.* FROM feedback f WHERE f.id = ANY ($1)
        UNION
        SELECT f.* FROM feedback f WHERE f.request_id = ANY ($2)
    ), about AS (
        SELECT a.id, r.experiment_id, r.digest FROM asked a
            JOIN experiment_requests r ON r.request_id = a.request_id AND r.project_id = a.project_id
        UNION
        SELECT a.id, u.experiment_id, u.digest FROM asked a
            JOIN experiment_units u ON u.digest = a.digest
            JOIN experiments e ON e.id = u.experiment_id AND e.project_id = a.project_id
        UNION
        SELECT c.feedback_id, c.experiment_id, c.digest FROM asked a JOIN feedback_counted c ON c.feedback_id = a.id
    )
    SELECT b.id, b.experiment_id, b.digest, a.metric, a.source = 'judge' AS is_by_judge, a.value,
           (extract(epoch FROM a.occurred_at) * 1000000)::bigint AS at_us, a.withdrawn_at IS NOT NULL AS is_withdrawn,
           c.value AS counted_value, (extract(epoch FROM c.occurred_at) * 1000000)::bigint AS counted_us
    FROM about b JOIN asked a ON a.id = b.id
        LEFT JOIN feedback_counted c ON c.feedback_id = b.id AND c.experiment_id = b.experiment_id
    ORDER BY b.id, b.experiment_id
"""


async def vote_changes(
    conn: Connection, feedback_ids: Collection[str], request_ids: Collection[str]
) -> list[VoteDifference]:
    """Return the units and both votes of some feedbacks, and of all feedback about some requests."""
    found = []
    for row in await conn.fetch(_DIFFERENCES, list(feedback_ids), list(request_ids)):
        vote = Vote(row["id"], row["metric"], row["value"], row["at_us"], row["is_by_judge"])
        counted = None
        if row["counted_us"] is not None:
            counted = Vote(row["id"], row["metric"], row["counted_value"], row["counted_us"], row["is_by_judge"])
        unit = row["experiment_id"], row["digest"]
        found.append(VoteDifference(row["id"], unit, counted, None if row["is_withdrawn"] else vote))
    return found


_WRITE = """
    INSERT INTO feedback_counted AS c (feedback_id, experiment_id, digest, value, occurred_at)
    SELECT * FROM unnest($1::text[], $2::text[], $3::bytea[], $4::bigint[], $5::timestamptz[])
    ON CONFLICT (feedback_id, experiment_id) DO UPDATE SET
        digest = excluded.digest, value = excluded.value, occurred_at = excluded.occurred_at
"""
_REMOVE = """
    DELETE FROM feedback_counted c USING unnest($1::text[], $2::text[]) AS v (feedback_id, experiment_id)
    WHERE c.feedback_id = v.feedback_id AND c.experiment_id = v.experiment_id
"""
_REMOVE_OTHERS = """
    DELETE FROM feedback_counted c USING unnest($1::text[], $2::bytea[]) AS u (experiment_id, digest)
    WHERE c.experiment_id = u.experiment_id AND c.digest = u.digest
      AND (c.feedback_id, c.experiment_id) NOT IN (SELECT * FROM unnest($3::text[], $4::text[]))
"""


async def write_counted(
    conn: Connection,
    counted: Iterable[tuple[UnitId, Vote]],
    removed: Iterable[tuple[UnitId, str]],
    recounted: Collection[UnitId],
) -> None:
    """Record which votes are in the sums now.

    removed: feedbacks of which the sums no longer have a vote. recounted: units of which the sums have only votes in
    `counted`.
    """
    listed = sorted(counted, key=lambda each: (each[1].feedback_id, each[0]))
    ids, experiment_ids = [vote.feedback_id for _, vote in listed], [unit[0] for unit, _ in listed]
    gone = list(removed)
    if gone:
        await conn.execute(_REMOVE, [each for _, each in gone], [unit[0] for unit, _ in gone])
    if recounted:
        units = [unit[0] for unit in recounted], [unit[1] for unit in recounted]
        await conn.execute(_REMOVE_OTHERS, *units, ids, experiment_ids)
    if listed:
        values, times = [vote.value for _, vote in listed], [instant(vote.at_us) for _, vote in listed]
        await conn.execute(_WRITE, ids, experiment_ids, [unit[1] for unit, _ in listed], values, times)


# A vote that somebody changes just now stays, without waiting for it: it goes with the purge if it stays withdrawn.
_DROP_WITHDRAWN = """
    DELETE FROM feedback WHERE ctid = ANY (ARRAY (
        SELECT f.ctid FROM feedback f WHERE f.id = ANY ($1) AND f.withdrawn_at IS NOT NULL
          AND NOT EXISTS (SELECT FROM feedback_counted c WHERE c.feedback_id = f.id)
        ORDER BY f.id FOR UPDATE SKIP LOCKED))
"""


async def drop_withdrawn(conn: Connection, feedback_ids: Collection[str]) -> None:
    """Delete the given feedbacks that were withdrawn and are in no sums; keep the others."""
    if feedback_ids:
        await conn.execute(_DROP_WITHDRAWN, list(feedback_ids))
