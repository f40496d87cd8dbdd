"""The audit log: who changed what, from what to what, from where. Append only, a chain of hashes per organization.

    hash = SHA-256(previous hash + the row's other columns in their order as a JSON array, without spaces, in UTF-8)

The first row's previous hash is 32 zero bytes; `audit_heads` keeps the last one, so that rows cut off the end are
missed too. Somebody who can rewrite the whole database can rewrite the chain: note the head elsewhere now and then.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.db.ids import new_id

if TYPE_CHECKING:
    from gateway.db.pool import Connection

NO_HASH = bytes(32)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)


class Author(msgspec.Struct, frozen=True, kw_only=True):
    """The author of a change."""

    organization_id: str
    kind: str
    """"api_key" or "user"; "system" for a part of the server that changes something by itself."""
    id: str
    """The id of the key or user; for "system" the name of the part, such as "prober"."""
    email: str | None
    address: str
    """The address of the client, empty where there is none."""
    request_id: str


class AuditRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the audit log."""

    organization_id: str
    sequence: int
    id: str
    effective_at: datetime.datetime
    actor_kind: str
    actor_id: str
    actor_email: str | None
    address: str
    request_id: str
    event: str
    object_id: str
    project_id: str | None
    before: str | None
    """The object before the change, as JSON text."""
    after: str | None
    """The object after the change, as JSON text."""
    previous_hash: bytes
    hash: bytes


class Link(msgspec.Struct, frozen=True):
    """A place in the chain: the number of a row and its hash."""

    sequence: int
    hash: bytes


class ChainBreak(msgspec.Struct, frozen=True):
    """The first row of the audit log at which the chain of hashes does not hold."""

    sequence: int
    id: str | None
    """The id of the row; None where it is missing."""
    reason: str


class Verdict(msgspec.Struct, frozen=True):
    """The result of checking the chain."""

    head: Link
    """The last good link."""
    broken: ChainBreak | None


def chain_hash(row: AuditRow) -> bytes:
    """Return the hash that the row should have. The time counts in microseconds since 1970."""
    columns: dict[str, Any] = msgspec.structs.asdict(row)
    del columns["previous_hash"], columns["hash"]
    columns["effective_at"] = (row.effective_at - _EPOCH) // _MICROSECOND
    return hashlib.sha256(row.previous_hash + msgspec.json.encode(list(columns.values()))).digest()


def check_link(before: Link, row: AuditRow) -> ChainBreak | None:
    """Check that a row follows `before` in the chain; return the break, or None if it does."""
    expected = before.sequence + 1
    if row.sequence != expected:
        return ChainBreak(expected, None, f"row {expected} is missing")
    if row.previous_hash != before.hash:
        return ChainBreak(row.sequence, row.id, "it does not follow the row before it")
    if row.hash != chain_hash(row):
        return ChainBreak(row.sequence, row.id, "its content does not match its hash")
    return None


# Both statements take the lock's time, so times grow with the numbers.
_LOCK_HEAD = """
    INSERT INTO audit_heads AS head (organization_id) VALUES ($1)
    ON CONFLICT (organization_id) DO UPDATE SET sequence = head.sequence
    RETURNING sequence, hash, clock_timestamp() AS at
"""
_INSERT = """
    INSERT INTO audit_log (organization_id, sequence, id, effective_at, actor_kind, actor_id, actor_email, address,
                           request_id, event, object_id, project_id, before, after, previous_hash, hash)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)
"""
_MOVE_HEAD = "UPDATE audit_heads SET sequence = $2, hash = $3 WHERE organization_id = $1"


async def record(
    conn: Connection,
    author: Author,
    event: str,
    object_id: str,
    *,
    project_id: str | None = None,
    before: object = None,
    after: object = None,
) -> None:
    """Append a row in the transaction of the change, as its last statement, since that holds the chain's lock.

    before, after: the object as the API shows it, encoded as JSON; never a secret. event: the name of the change.
    project_id: the project that the change is about; None: the organization.
    """
    assert conn.is_in_transaction()
    head = await conn.fetchrow(_LOCK_HEAD, author.organization_id)
    assert head is not None
    row = AuditRow(
        organization_id=author.organization_id,
        sequence=head["sequence"] + 1,
        id=new_id("audit"),
        effective_at=head["at"],
        actor_kind=author.kind,
        actor_id=author.id,
        actor_email=author.email,
        address=author.address,
        request_id=author.request_id,
        event=event,
        object_id=object_id,
        project_id=project_id,
        before=None if before is None else msgspec.json.encode(before).decode(),
        after=None if after is None else msgspec.json.encode(after).decode(),
        previous_hash=head["hash"],
        hash=b"",
    )
    row = msgspec.structs.replace(row, hash=chain_hash(row))
    await conn.execute(_INSERT, *(getattr(row, name) for name in row.__struct_fields__))
    await conn.execute(_MOVE_HEAD, row.organization_id, row.sequence, row.hash)


_ALL = """
    SELECT organization_id, sequence, id, effective_at, actor_kind, actor_id, actor_email, address, request_id, event,
           object_id, project_id, before, after, previous_hash, hash
    FROM audit_log WHERE organization_id = $1 ORDER BY sequence
"""
_HEAD = "SELECT sequence, hash FROM audit_heads WHERE organization_id = $1"
_PREFETCH = 1000


async def verify(conn: Connection, organization_id: str) -> Verdict:
    """Check the organization's whole chain, a thousand rows in memory at a time."""
    async with conn.transaction(isolation="repeatable_read", readonly=True):
        at = Link(0, NO_HASH)
        async for found in conn.cursor(_ALL, organization_id, prefetch=_PREFETCH):
            row = AuditRow(**found)
            if broken := check_link(at, row):
                return Verdict(at, broken)
            at = Link(row.sequence, row.hash)
        head = await conn.fetchrow(_HEAD, organization_id)
    if (head["sequence"], head["hash"]) != (at.sequence, at.hash) if head else at.sequence:
        return Verdict(
            at, ChainBreak(at.sequence + 1, None, f"row {at.sequence + 1} is missing, or the head was changed")
        )
    return Verdict(at, None)


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The filter of a list of the audit log. Empty lists and None do not filter. Times are in Unix seconds."""

    project_ids: Sequence[str] = ()
    events: Sequence[str] = ()
    actor_ids: Sequence[str] = ()
    actor_emails: Sequence[str] = ()
    object_ids: Sequence[str] = ()
    since: float | None = None
    until: float | None = None


_LIST = """
    SELECT organization_id, sequence, id, effective_at, actor_kind, actor_id, actor_email, address, request_id, event,
           object_id, project_id, before, after, previous_hash, hash
    FROM audit_log
    WHERE organization_id = $1
      AND ($2::text IS NULL OR sequence < (SELECT sequence FROM audit_log WHERE organization_id = $1 AND id = $2))
      AND ($4::text[] = '{}' OR project_id = ANY ($4)) AND ($5::text[] = '{}' OR event = ANY ($5))
      AND ($6::text[] = '{}' OR actor_id = ANY ($6)) AND ($7::text[] = '{}' OR actor_email = ANY ($7))
      AND ($8::text[] = '{}' OR object_id = ANY ($8))
      AND ($9::float8 IS NULL OR effective_at >= to_timestamp($9))
      AND ($10::float8 IS NULL OR effective_at < to_timestamp($10))
    ORDER BY sequence DESC LIMIT $3
"""


async def list_audit(
    conn: Connection, organization_id: str, wanted: AuditFilter, *, after: str | None, limit: int
) -> list[AuditRow]:
    """Return audit rows, newest first, those that come after the row with id `after` in that order."""
    lists = (wanted.project_ids, wanted.events, wanted.actor_ids, wanted.actor_emails, wanted.object_ids)
    rows = await conn.fetch(_LIST, organization_id, after, limit, *map(list, lists), wanted.since, wanted.until)
    return [AuditRow(**row) for row in rows]


_EXISTS = """
    SELECT EXISTS (
        SELECT FROM audit_log
        WHERE organization_id = $1 AND id = $2 AND ($3::text[] IS NULL OR project_id = ANY ($3)))
"""


async def audit_row_exists(conn: Connection, organization_id: str, row_id: str, projects: Sequence[str] | None) -> bool:
    """Tell whether the organization has this row, among those of these projects; None: among all."""
    return bool(await conn.fetchval(_EXISTS, organization_id, row_id, projects))


_OF_PROJECTS = """
    SELECT user_id AS id FROM project_members WHERE project_id = ANY ($1) AND user_id = ANY ($2)
    UNION SELECT id FROM api_keys WHERE project_id = ANY ($1) AND id = ANY ($2)
"""


async def actors_of_projects(conn: Connection, projects: Sequence[str], actor_ids: Sequence[str]) -> frozenset[str]:
    """Return the given actors that are members or keys of these projects."""
    return frozenset(row["id"] for row in await conn.fetch(_OF_PROJECTS, projects, actor_ids))
