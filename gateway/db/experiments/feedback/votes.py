"""Feedback: votes about requests and units, and the events by which the sums of experiments get them.

The latest vote of a source about a request or unit, by a metric, counts: it takes the row of the earlier ones. Rows of
a purged project are not shown, whether they are deleted yet or not.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.domain.experiments.feedback.votes import FeedbackMetric, Source, ValueType

if TYPE_CHECKING:
    from gateway.db.pool import Connection

RETENTION_DAYS = 400
"""Days for which votes are kept, with the ids that clients gave them."""

DROP_AT_ONCE = 1000
"""The most rows that one transaction deletes."""


class NewVote(msgspec.Struct, frozen=True, kw_only=True):
    """A new vote, with the columns of its row."""

    id: str
    request_id: str | None
    digest: bytes | None
    """The digest of the unit that the vote is about; None for a vote about a request."""
    metric: str
    source: Source
    value: int
    """The value in millionths."""
    label: str | None
    """The word that the client voted with; None for a number."""
    fingerprint: bytes
    content_key: str | None
    """The id of the key that encrypts the sealed fields; None where they are empty."""
    sealed_comment: bytes | None
    occurred_at: datetime.datetime


class VoteRow(NewVote, frozen=True, kw_only=True):
    """A vote that counts."""

    received_at: datetime.datetime
    type: ValueType
    """The type of the vote's metric."""


class PresentVote(msgspec.Struct, frozen=True):
    """The present vote of a feedback, which a later vote replaces."""

    id: str
    occurred_at: datetime.datetime
    fingerprint: bytes
    is_withdrawn: bool


class ClientId(msgspec.Struct, frozen=True):
    """An id that a client gave a vote, and the answer that the client got."""

    client_id: bytes
    fingerprint: bytes
    feedback_id: str
    replaced: bool


_LOCK = "SELECT clock_timestamp() FROM projects WHERE id = $1 AND purged_at IS NULL FOR SHARE"


async def lock_for_votes(conn: Connection, project_id: str) -> datetime.datetime | None:
    """Keep a project from being purged until the transaction ends, and return the time; None where it was purged."""
    at: datetime.datetime | None = await conn.fetchval(_LOCK, project_id)
    return at


_METRICS = """
    SELECT name, type, goal, kind, least, most, labels FROM feedback_metrics
    WHERE project_id = $1 AND name = ANY ($2::text[])
"""


async def find_metrics(conn: Connection, project_id: str, names: Collection[str]) -> dict[str, FeedbackMetric]:
    """Return the project's own metrics that have these names."""
    rows = await conn.fetch(_METRICS, project_id, [name for name in names if "\0" not in name])
    return {row["name"]: FeedbackMetric(**dict(row) | {"labels": _labels(row["labels"])}) for row in rows}


def _labels(text: str | None) -> dict[str, int] | None:
    return None if text is None else msgspec.json.decode(text, type=dict[str, int])


_REQUESTS = "SELECT request_id FROM experiment_requests WHERE project_id = $1 AND request_id = ANY ($2::text[])"


async def known_requests(conn: Connection, project_id: str, request_ids: Collection[str]) -> set[str]:
    """Return the given ids that are ids of requests in a project's experiments."""
    return {row["request_id"] for row in await conn.fetch(_REQUESTS, project_id, list(request_ids))}


_CLAIM = """
    INSERT INTO feedback_ids (project_id, client_id, fingerprint)
    SELECT $1, n.client_id, n.fingerprint FROM unnest($2::bytea[], $3::bytea[]) n (client_id, fingerprint)
    ON CONFLICT (project_id, client_id) DO NOTHING RETURNING client_id
"""
_CLAIMED = """
    SELECT client_id, fingerprint, feedback_id, replaced FROM feedback_ids
    WHERE project_id = $1 AND client_id = ANY ($2::bytea[])
"""


async def claim_ids(conn: Connection, project_id: str, ids: Sequence[tuple[bytes, bytes]]) -> dict[bytes, ClientId]:
    """Store ids that clients gave votes, and return those that were stored before.

    ids: (digest of the id, fingerprint of the vote), by digest ascending, so that two transactions never wait for each
    other. Waits for another transaction that takes one of them.
    """
    digests = [each for each, _ in ids]
    made = {row["client_id"] for row in await conn.fetch(_CLAIM, project_id, digests, [each for _, each in ids])}
    before = [each for each in digests if each not in made]
    if not before:
        return {}
    return {row["client_id"]: ClientId(**row) for row in await conn.fetch(_CLAIMED, project_id, before)}


_ANSWERED = """
    UPDATE feedback_ids f SET feedback_id = n.feedback_id, replaced = n.replaced
    FROM unnest($2::bytea[], $3::text[], $4::bool[]) n (client_id, feedback_id, replaced)
    WHERE f.project_id = $1 AND f.client_id = n.client_id
"""


async def note_answers(conn: Connection, project_id: str, answers: Sequence[tuple[bytes, str, bool]]) -> None:
    """Store the answers to votes that have ids. answers: (digest of the vote's id, id of the feedback, replaced)."""
    if answers:
        await conn.execute(_ANSWERED, project_id, *(list(column) for column in zip(*answers, strict=True)))


_INSERT = """
    INSERT INTO feedback (project_id, id, request_id, digest, metric, source, value, label, fingerprint, content_key,
                          sealed_comment, occurred_at)
    SELECT $1, n.* FROM
    unnest($2::text[], $3::text[], $4::bytea[], $5::text[], $6::text[], $7::bigint[], $8::text[], $9::bytea[],
           $10::text[], $11::bytea[], $12::timestamptz[])
        n (id, request_id, digest, metric, source, value, label, fingerprint, content_key, sealed_comment, occurred_at)
    ON CONFLICT (id) DO NOTHING RETURNING id
"""


async def insert_votes(conn: Connection, project_id: str, votes: Sequence[NewVote]) -> set[str]:
    """Insert votes, without those that replace an earlier vote; return the ids of the inserted votes.

    votes: in ascending order of ids, each id once. Waits for another transaction that inserts one of the votes.
    """
    return {row["id"] for row in await conn.fetch(_INSERT, project_id, *_columns(votes))}


_STANDING = """
    SELECT id, occurred_at, fingerprint, withdrawn_at IS NOT NULL AS is_withdrawn FROM feedback
    WHERE project_id = $1 AND id = ANY ($2::text[]) ORDER BY id FOR NO KEY UPDATE
"""


async def lock_votes(conn: Connection, project_id: str, ids: Collection[str]) -> dict[str, PresentVote]:
    """Lock the votes of these ids, withdrawn ones included, and return them.

    The bookkeeper may refer to them meanwhile, since their keys do not change.
    """
    return {row["id"]: PresentVote(**row) for row in await conn.fetch(_STANDING, project_id, list(ids))}


_REPLACE = """
    UPDATE feedback f
    SET value = n.value, label = n.label, fingerprint = n.fingerprint, content_key = n.content_key,
        sealed_comment = n.sealed_comment, occurred_at = n.occurred_at, received_at = clock_timestamp(),
        withdrawn_at = NULL
    FROM
    unnest($2::text[], $3::text[], $4::bytea[], $5::text[], $6::text[], $7::bigint[], $8::text[], $9::bytea[],
           $10::text[], $11::bytea[], $12::timestamptz[])
        n (id, request_id, digest, metric, source, value, label, fingerprint, content_key, sealed_comment, occurred_at)
    WHERE f.project_id = $1 AND f.id = n.id
"""


async def replace_votes(conn: Connection, project_id: str, votes: Sequence[NewVote]) -> None:
    """Put votes in the place of those with the same ids, which the transaction has locked."""
    await conn.execute(_REPLACE, project_id, *_columns(votes))


def _columns(votes: Sequence[NewVote]) -> list[list[Any]]:
    return [[getattr(vote, name) for vote in votes] for name in NewVote.__struct_fields__]


# A vote makes one event, whatever the vote is about: the bookkeeper looks up which units that are, in all experiments
# of the project. A unit that appears later is counted by all its rows, votes too.
_ANNOUNCE = """
    INSERT INTO experiment_events (experiment_id, kind, feedback_id, created_at)
    SELECT e.id, 'feedback', f.id, f.occurred_at
    FROM feedback f CROSS JOIN (SELECT id FROM experiments WHERE project_id = $1 AND started_at IS NOT NULL
                                ORDER BY created_at DESC, id DESC LIMIT 1) e
    WHERE f.project_id = $1 AND f.id = ANY ($2::text[])
"""


async def announce_votes(conn: Connection, project_id: str, ids: Collection[str]) -> None:
    """Queue changed votes for the bookkeeper of experiments, each once."""
    await conn.execute(_ANNOUNCE, project_id, list(ids))


_FIND = """
    SELECT f.id, f.request_id, f.digest, f.metric, f.source, f.value, f.label, f.fingerprint, f.content_key,
           f.sealed_comment, f.occurred_at, f.received_at, m.type
    FROM feedback f JOIN projects p ON p.id = f.project_id AND p.purged_at IS NULL
         JOIN feedback_metrics m ON m.project_id = f.project_id AND m.name = f.metric
    WHERE f.project_id = $1 AND f.id = $2 AND f.withdrawn_at IS NULL
"""


async def find_vote(conn: Connection, project_id: str, feedback_id: str) -> VoteRow | None:
    """Return the vote of this id that counts; None where there is none, or it was withdrawn."""
    row = await conn.fetchrow(_FIND, project_id, feedback_id)
    return VoteRow(**row) if row else None


_LIST = """
    SELECT f.id, f.request_id, f.digest, f.metric, f.source, f.value, f.label, f.fingerprint, f.content_key,
           f.sealed_comment, f.occurred_at, f.received_at, m.type
    FROM feedback f JOIN projects p ON p.id = f.project_id AND p.purged_at IS NULL
         JOIN feedback_metrics m ON m.project_id = f.project_id AND m.name = f.metric
    WHERE f.project_id = $1 AND f.withdrawn_at IS NULL
      AND ($2::text IS NULL OR f.request_id = $2) AND ($3::bytea IS NULL OR f.digest = $3)
      AND ($4::text IS NULL OR f.metric = $4) AND ($5::text IS NULL OR f.source = $5)
      AND ($6::text IS NULL OR (f.received_at, f.id) >
           (SELECT received_at, id FROM feedback WHERE project_id = $1 AND id = $6))
    ORDER BY f.received_at, f.id LIMIT $7
"""


class VoteQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that the votes of a list have in common; None: any value."""

    request_id: str | None = None
    digest: bytes | None = None
    metric: str | None = None
    source: str | None = None
    after: str | None = None
    """The id of the vote that the page follows."""
    limit: int = 20


async def list_votes(conn: Connection, project_id: str, query: VoteQuery) -> tuple[list[VoteRow], bool]:
    """Return a page of votes by the time at which they came, and whether there are more."""
    rows = await conn.fetch(
        _LIST, project_id, query.request_id, query.digest, query.metric, query.source, query.after, query.limit + 1
    )
    return [VoteRow(**row) for row in rows[: query.limit]], len(rows) > query.limit


_WITHDRAW = """
    UPDATE feedback SET withdrawn_at = clock_timestamp(), content_key = NULL, sealed_comment = NULL
    WHERE project_id = $1 AND id = $2 AND withdrawn_at IS NULL
      AND EXISTS (SELECT FROM projects p WHERE p.id = $1 AND p.purged_at IS NULL)
"""


async def withdraw_vote(conn: Connection, project_id: str, feedback_id: str) -> bool:
    """Withdraw a vote, which then neither counts nor is shown; False where there is none. The row is deleted later."""
    return await conn.execute(_WITHDRAW, project_id, feedback_id) != "UPDATE 0"


# A row that the sums still have stays: without it nobody could tell what to subtract.
_DROP_WITHDRAWN = """
    DELETE FROM feedback WHERE ctid = ANY (ARRAY (
        SELECT f.ctid FROM feedback f
        WHERE f.withdrawn_at < now() - interval '1 hour'
          AND NOT EXISTS (SELECT FROM feedback_counted c WHERE c.feedback_id = f.id)
        LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING true
"""


async def drop_withdrawn_votes(conn: Connection) -> int:
    """Delete some votes that were withdrawn and are in no sums any more; returns how many."""
    return len(await conn.fetch(_DROP_WITHDRAWN, DROP_AT_ONCE))


# The rows of each project, by the index of its oldest.
_DROP_OLD = """
    DELETE FROM feedback WHERE ctid = ANY (ARRAY (
        SELECT old.ctid FROM projects p CROSS JOIN LATERAL (
            SELECT f.ctid FROM feedback f
            WHERE f.project_id = p.id AND f.received_at <=
                  CASE WHEN p.purged_at IS NULL THEN now() - $2 * interval '1 day' ELSE 'infinity' END
            ORDER BY f.received_at LIMIT $1 FOR UPDATE SKIP LOCKED) old
        LIMIT $1))
    RETURNING true
"""


async def drop_old_votes(conn: Connection) -> int:
    """Delete some votes that are older than RETENTION_DAYS, or of purged projects; return how many.

    The former stay in the sums.
    """
    return len(await conn.fetch(_DROP_OLD, DROP_AT_ONCE, RETENTION_DAYS))


_DROP_OLD_IDS = """
    DELETE FROM feedback_ids WHERE ctid = ANY (ARRAY (
        SELECT ctid FROM feedback_ids WHERE received_at < now() - $2 * interval '1 day'
        LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING true
"""


async def drop_old_ids(conn: Connection) -> int:
    """Delete some ids of votes that are older than RETENTION_DAYS; return how many."""
    return len(await conn.fetch(_DROP_OLD_IDS, DROP_AT_ONCE, RETENTION_DAYS))


_DROP_OF_PROJECT = """
    DELETE FROM feedback WHERE ctid = ANY (ARRAY (
        SELECT ctid FROM feedback WHERE project_id = $1 LIMIT $2 FOR UPDATE SKIP LOCKED))
    RETURNING true
"""
_DROP_IDS_OF_PROJECT = """
    DELETE FROM feedback_ids WHERE ctid = ANY (ARRAY (
        SELECT ctid FROM feedback_ids WHERE project_id = $1 LIMIT $2 FOR UPDATE SKIP LOCKED))
    RETURNING true
"""


async def drop_votes_of(conn: Connection, project_id: str) -> int:
    """Delete some of a project's votes, and of the ids that clients gave votes. Return how many."""
    votes = await conn.fetch(_DROP_OF_PROJECT, project_id, DROP_AT_ONCE)
    ids = await conn.fetch(_DROP_IDS_OF_PROJECT, project_id, DROP_AT_ONCE)
    return len(votes) + len(ids)
