"""Votes into tables: checked as a whole, kept in one transaction, counted once however often and late they come.

Two votes of one source about one thing, by one metric, are one row: the later one counts, by `occurred_at` and where
that is equal by their values, so that the order in which votes arrive changes nothing. Knows no HTTP.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec

from gateway.db.experiments.feedback import votes as db
from gateway.db.experiments.feedback.votes import ClientId, NewVote, PresentVote, VoteQuery, VoteRow
from gateway.db.pool import CONFLICTS, Database
from gateway.domain.errors import Conflict, InvalidRequest, NotFound
from gateway.domain.experiments.assignment import unit_digest
from gateway.domain.experiments.feedback.vote_ids import is_signed, random_part, request_id_of
from gateway.domain.experiments.feedback.votes import FeedbackMetric, Subject, checked_value, feedback_id, fingerprint
from gateway.evaluation.wire import FeedbackAccepted, Vote
from gateway.experiments.keys import ProjectKeys
from gateway.support.cipher import Cipher, Place, Sealed
from gateway.text.redact import redacted

if TYPE_CHECKING:
    from gateway.db.pool import Connection

FUTURE_S = 300.0
"""Seconds by which a client's clock may be ahead."""

NUM_TRIES = 3
"""The number of times that writing votes is tried where another transaction conflicts."""


class _CheckedVote(msgspec.Struct):
    """A vote with valid fields, and the digest of the id that its client gave it."""

    row: NewVote
    client_id: bytes | None


class Votes:
    """The feedback of all projects. A gateway process has one. Methods raise the database's errors as well."""

    def __init__(self, database: Database, keys: ProjectKeys, cipher: Cipher) -> None:
        self._database = database
        self._keys = keys
        self._cipher = cipher

    async def add(self, project_id: str, votes: Sequence[Vote], *, many: bool) -> list[FeedbackAccepted]:
        """Write all votes or none, durably. many: whether error paths name the fields as elements of a list.

        Raises InvalidRequest: for the first field that is wrong.
        Raises NotFound: for a request that no experiment of the project has.
        Raises Conflict: for an id of a client under which another vote was sent.
        """
        for _ in range(NUM_TRIES - 1):
            with contextlib.suppress(*CONFLICTS):
                return await self._add(project_id, votes, many=many)
        return await self._add(project_id, votes, many=many)

    async def _add(self, project_id: str, votes: Sequence[Vote], *, many: bool) -> list[FeedbackAccepted]:
        key = await self._keys.key(project_id)
        paths = [f"data[{at}]." if many else "" for at in range(len(votes))]
        subjects = [_subject(key, vote, path) for vote, path in zip(votes, paths, strict=True)]
        async with self._database.transaction() as conn:
            now = await db.lock_for_votes(conn, project_id)
            if now is None:
                raise _no_such_request("")
            metrics = await db.find_metrics(conn, project_id, {vote.metric for vote in votes})
            checked = [
                self._checked_vote(project_id, key, vote, subject, metrics, path, now)
                for vote, (subject, _), path in zip(votes, subjects, paths, strict=True)
            ]
            await _check_requests(conn, project_id, votes, subjects, paths)
            return await _store(conn, project_id, checked, paths)

    async def get(self, project_id: str, feedback: str) -> tuple[VoteRow, str | None] | None:
        """Return a vote and its comment; None where there is none.

        Raises ContentUnreadable: when this gateway lacks the comment's content key.
        """
        async with self._database.acquire() as conn:
            row = await db.find_vote(conn, project_id, feedback.replace("\0", ""))
        return None if row is None else (row, self._comment(project_id, row))

    async def list_page(
        self, project_id: str, query: VoteQuery, unit: str | None
    ) -> tuple[list[tuple[VoteRow, str | None]], bool]:
        """Return a page of votes with their comments, and whether there are more.

        unit: the unit that all of them are about; None: any.

        Raises ContentUnreadable: when this gateway lacks the key of a comment.
        """
        if unit is not None:
            query = msgspec.structs.replace(query, digest=unit_digest(await self._keys.key(project_id), unit))
        async with self._database.acquire() as conn:
            rows, has_more = await db.list_votes(conn, project_id, query)
        return [(row, self._comment(project_id, row)) for row in rows], has_more

    async def withdraw(self, project_id: str, feedback: str) -> bool:
        """Withdraw a vote, so that it counts no more. Returns False if the project has no such vote."""
        async with self._database.transaction() as conn:
            is_gone = await db.withdraw_vote(conn, project_id, feedback.replace("\0", ""))
            if is_gone:
                await db.announce_votes(conn, project_id, [feedback])
        return is_gone

    def _comment(self, project_id: str, row: VoteRow) -> str | None:
        if row.content_key is None or row.sealed_comment is None:
            return None
        return self._cipher.open(Sealed(row.content_key, row.sealed_comment), _place(project_id, row.id)).decode()

    def _checked_vote(
        self,
        project_id: str,
        key: bytes,
        vote: Vote,
        subject: Subject,
        metrics: dict[str, FeedbackMetric],
        path: str,
        now: datetime.datetime,
    ) -> _CheckedVote:
        metric = metrics.get(vote.metric)
        if metric is None:
            raise _invalid_value(f"{path}metric", "the project has no metric of this name")
        value = checked_value(metric, vote.value, f"{path}value")
        occurred_at = _time(vote, path, now)
        made = feedback_id(key, subject, vote.metric, vote.source)
        comment = redacted(vote.comment) if vote.comment else None
        sealed = None if comment is None else self._cipher.seal(comment.encode(), _place(project_id, made))
        row = NewVote(
            id=made,
            request_id=subject.request_id,
            digest=subject.digest,
            metric=vote.metric,
            source=vote.source,
            value=value.value,
            label=value.label,
            fingerprint=fingerprint(key, made, value, vote.comment, occurred_at),
            content_key=None if sealed is None else sealed.key_id,
            sealed_comment=None if sealed is None else sealed.data,
            occurred_at=occurred_at or now,
        )
        return _CheckedVote(row, None if vote.id is None else _digest(key, vote.id))


def _subject(key: bytes, vote: Vote, path: str) -> tuple[Subject, bool]:
    """Return the subject of a vote, and whether its id proves that the project has the request.

    Raises InvalidRequest: when the vote names nothing, or more than one thing.
    """
    named = [name for name in ("completion_id", "request_id", "unit") if getattr(vote, name) is not None]
    if not named:
        raise _invalid_value(f"{path}completion_id", "a vote names a 'completion_id', a 'request_id' or a 'unit'")
    if len(named) > 1:
        raise _invalid_value(f"{path}{named[1]}", f"a vote is about one thing, and this one names '{named[0]}' as well")
    if vote.unit is not None:
        if vote.occurred_at is None:
            raise _invalid_value(f"{path}occurred_at", "a vote about a unit needs it")
        return Subject(digest=unit_digest(key, vote.unit)), True
    text = vote.completion_id or vote.request_id or ""
    if text.isascii() and is_signed(key, text):
        return Subject(request_id=request_id_of(text)), True
    is_of_reply = "-" in text or text.startswith("resp_")
    return Subject(request_id=f"req_{random_part(text)}" if is_of_reply else text), False


async def _check_requests(
    conn: Connection,
    project_id: str,
    votes: Sequence[Vote],
    subjects: Sequence[tuple[Subject, bool]],
    paths: Sequence[str],
) -> None:
    """Check that each request that a vote names is one of the project's.

    Ids of other projects' requests, made-up ids and texts that are no ids are looked up in the same way, so that
    neither the answer nor its time tells which of them a text was.

    Raises NotFound: when a request is not the project's.
    """
    wanted = {subject.request_id for subject, is_proven in subjects if subject.request_id and not is_proven}
    if not wanted:
        return
    known = await db.known_requests(conn, project_id, {each.replace("\0", "") for each in wanted if each})
    for vote, (subject, is_proven), path in zip(votes, subjects, paths, strict=True):
        if not is_proven and subject.request_id not in known:
            raise _no_such_request(path + ("completion_id" if vote.completion_id is not None else "request_id"))


async def _store(
    conn: Connection, project_id: str, checked: Sequence[_CheckedVote], paths: Sequence[str]
) -> list[FeedbackAccepted]:
    """Write votes, and return the reply to each of them.

    Raises Conflict: for an id of a client under which another vote was sent, before or in the same list.
    """
    before = await _claim_client_ids(conn, project_id, checked, paths)
    new = [each for each in checked if each.client_id is None or each.client_id not in before]
    latest: dict[str, NewVote] = {}
    for each in new:
        if each.row.id not in latest or _order(latest[each.row.id]) < _order(each.row):
            latest[each.row.id] = each.row
    votes = [latest[id] for id in sorted(latest)]
    inserted, standing = await _insert_or_lock(conn, project_id, votes)
    changed = [vote for vote in votes if vote.id in standing and _replaces(vote, standing[vote.id])]
    if changed:
        await db.replace_votes(conn, project_id, changed)
    moved = inserted | {vote.id for vote in changed}
    if moved:
        await db.announce_votes(conn, project_id, sorted(moved))
    replaced = {vote.id for vote in changed if not standing[vote.id].is_withdrawn}
    answers = {
        each.client_id: (each.client_id, each.row.id, each.row.id in replaced)
        for each in new
        if each.client_id is not None
    }
    await db.note_answers(conn, project_id, list(answers.values()))
    return [
        FeedbackAccepted(id=known.feedback_id, replaced=known.replaced)
        if each.client_id is not None and (known := before.get(each.client_id)) is not None
        else FeedbackAccepted(id=each.row.id, replaced=each.row.id in replaced)
        for each in checked
    ]


async def _insert_or_lock(
    conn: Connection, project_id: str, votes: Sequence[NewVote]
) -> tuple[set[str], dict[str, PresentVote]]:
    """Insert new votes and lock the rows of existing ones. Return the inserted ids, and the locked rows by id.

    A row in a vote's place may be removed before it is locked, if it was withdrawn: then the vote is inserted.
    """
    inserted: set[str] = set()
    standing: dict[str, PresentVote] = {}
    while rest := [vote for vote in votes if vote.id not in inserted and vote.id not in standing]:
        inserted |= await db.insert_votes(conn, project_id, rest)
        there = [vote.id for vote in rest if vote.id not in inserted]
        standing |= await db.lock_votes(conn, project_id, there) if there else {}
    return inserted, standing


async def _claim_client_ids(
    conn: Connection, project_id: str, checked: Sequence[_CheckedVote], paths: Sequence[str]
) -> dict[bytes, ClientId]:
    """Claim the ids that clients gave votes. Return the ids that were claimed before, for the same votes.

    Raises Conflict: when an id was taken for another vote.
    """
    ids: dict[bytes, bytes] = {}
    for each, path in zip(checked, paths, strict=True):
        if each.client_id is not None and ids.setdefault(each.client_id, each.row.fingerprint) != each.row.fingerprint:
            raise _another_vote(path)
    if not ids:
        return {}
    before = await db.claim_ids(conn, project_id, sorted(ids.items()))
    for each, path in zip(checked, paths, strict=True):
        known = before.get(each.client_id) if each.client_id is not None else None
        if known is not None and known.fingerprint != each.row.fingerprint:
            raise _another_vote(path)
    return before


def _order(vote: NewVote) -> tuple[datetime.datetime, bytes]:
    return vote.occurred_at, vote.fingerprint


def _replaces(vote: NewVote, standing: PresentVote) -> bool:
    return standing.is_withdrawn or _order(vote) > (standing.occurred_at, standing.fingerprint)


def _time(vote: Vote, path: str, now: datetime.datetime) -> datetime.datetime | None:
    if vote.occurred_at is None:
        return None
    if vote.occurred_at > now.timestamp() + FUTURE_S:
        raise _invalid_value(f"{path}occurred_at", "it is in the future")
    return datetime.datetime.fromtimestamp(vote.occurred_at, datetime.UTC)


def _digest(key: bytes, client_id: str) -> bytes:
    return blake2b(client_id.encode(), key=key, person=b"lorikeet fb own", digest_size=16).digest()


def _place(project_id: str, feedback: str) -> Place:
    return Place(project_id, "feedback.comment", feedback)


def _invalid_value(param: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid value for '{param}': {why}.", param=param, code="invalid_value")


def _no_such_request(param: str) -> NotFound:
    return NotFound("No request of an experiment of this project has this id.", param=param or None)


def _another_vote(path: str) -> Conflict:
    return Conflict(f"Another vote was sent under the id in '{path}id'.", param=f"{path}id", code="id_used")
