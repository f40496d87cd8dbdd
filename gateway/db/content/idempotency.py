"""Requests with an Idempotency-Key: the executing request, its state, and its encrypted reply. Never the key itself.

A reply that its project does not allow, or of a purged project, is not shown, whether it is deleted yet or not.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from gateway.db.pool import Connection

EXPIRE_AT_ONCE = 1000
"""The most rows that one transaction deletes."""

State = Literal["running", "kept", "too_large", "not_allowed", "lost"]


class Slot(msgspec.Struct, frozen=True):
    """A client's idempotency key within its project: the same key of another project is another slot."""

    project_id: str
    key_sha256: bytes


class SlotRow(msgspec.Struct, frozen=True):
    """The state of a client's idempotency key.

    A slot whose reply was stored, but is not in this database, as after a restore, is `lost`.
    """

    fingerprint: bytes
    request_id: str
    """The id of the request that executes, or that executed."""
    state: State
    num_bytes: int
    """The size of the stored reply, encrypted."""


class ReplyRow(msgspec.Struct, frozen=True):
    """The encrypted reply to a request with an Idempotency-Key."""

    content_key: str
    """The id of the key that encrypts the sealed fields."""
    sealed: bytes


_CLAIM = """
    INSERT INTO idempotency_keys (project_id, key_sha256, fingerprint, request_id, alive_until, expires_at)
    VALUES ($1, $2, $3, $4, now() + $5::interval, now() + $6::interval)
    ON CONFLICT (project_id, key_sha256) DO NOTHING RETURNING true
"""


async def claim_slot(
    conn: Connection,
    slot: Slot,
    *,
    fingerprint: bytes,
    request_id: str,
    alive: datetime.timedelta,
    lasts: datetime.timedelta,
) -> bool:
    """Claim a slot; return whether this request is the one that executes.

    alive: the time after which the request counts as lost without another sign of life (`touch_slots`).
    lasts: the time after which the slot expires, and the key may be used anew.
    """
    return bool(await conn.fetchval(_CLAIM, slot.project_id, slot.key_sha256, fingerprint, request_id, alive, lasts))


_FIND = """
    SELECT i.fingerprint, i.request_id,
           CASE WHEN i.state = 'kept' AND NOT (p.keep_replies AND p.purged_at IS NULL
                                               AND coalesce(r.kept_at > p.replies_from, true)) THEN 'not_allowed'
                WHEN i.state = 'kept' AND r.sealed IS NULL THEN 'lost' ELSE i.state END AS state,
           coalesce(octet_length(r.sealed), 0) AS num_bytes
    FROM idempotency_keys i JOIN projects p ON p.id = i.project_id
         LEFT JOIN kept_replies r ON r.project_id = i.project_id AND r.key_sha256 = i.key_sha256
    WHERE i.project_id = $1 AND i.key_sha256 = $2 AND i.expires_at > now()
"""


async def find_slot(conn: Connection, slot: Slot) -> SlotRow | None:
    """Return the state of a key; None where the key is new."""
    row = await conn.fetchrow(_FIND, slot.project_id, slot.key_sha256)
    return SlotRow(**row) if row else None


_LOAD = """
    SELECT r.content_key, r.sealed
    FROM idempotency_keys i JOIN projects p ON p.id = i.project_id
         JOIN kept_replies r ON r.project_id = i.project_id AND r.key_sha256 = i.key_sha256
    WHERE i.project_id = $1 AND i.key_sha256 = $2 AND i.request_id = $3 AND i.state = 'kept'
      AND p.keep_replies AND p.purged_at IS NULL AND r.kept_at > p.replies_from
"""


async def load_reply(conn: Connection, slot: Slot, request_id: str) -> ReplyRow | None:
    """Return the stored reply of a slot; None where it is not stored any more, or not to be shown."""
    row = await conn.fetchrow(_LOAD, slot.project_id, slot.key_sha256, request_id)
    return ReplyRow(**row) if row else None


_IS_ALIVE = """
    SELECT alive_until > now() FROM idempotency_keys
    WHERE project_id = $1 AND key_sha256 = $2 AND state = 'running' AND expires_at > now()
"""


async def is_alive(conn: Connection, slot: Slot) -> bool | None:
    """Tell whether the gateway that executes the request gave a sign of life lately; None where none executes it."""
    alive: bool | None = await conn.fetchval(_IS_ALIVE, slot.project_id, slot.key_sha256)
    return alive


_LOSE = """
    UPDATE idempotency_keys SET state = 'lost'
    WHERE project_id = $1 AND key_sha256 = $2 AND state = 'running' AND alive_until <= now()
"""


async def lose_slot(conn: Connection, slot: Slot) -> None:
    """Mark a running slot as lost if its gateway still gives no sign of life: nobody knows whether its request ran."""
    await conn.execute(_LOSE, slot.project_id, slot.key_sha256)


# The project is locked, so that nothing is kept after it was forbidden.
_FINISH = """
    WITH project AS (SELECT keep_replies AND purged_at IS NULL AS allows FROM projects WHERE id = $1 FOR SHARE),
    ended AS (
        UPDATE idempotency_keys SET
            state = CASE WHEN NOT project.allows THEN 'not_allowed'
                         WHEN $5::bytea IS NULL THEN 'too_large' ELSE 'kept' END
        FROM project WHERE project_id = $1 AND key_sha256 = $2 AND request_id = $3
            AND state IN ('running', 'lost')
        RETURNING state)
    INSERT INTO kept_replies (project_id, key_sha256, content_key, sealed)
    SELECT $1, $2, $4, $5 FROM ended WHERE state = 'kept'
"""


async def finish_slot(
    conn: Connection, slot: Slot, request_id: str, *, content_key: str | None, sealed: bytes | None
) -> None:
    """Record that a request has run, even if it was marked as lost.

    The reply is stored if the project allows that. sealed: None for a reply that was too large to store. content_key:
    the id of the key that the reply is encrypted with; None: the reply is not stored.
    """
    await conn.execute(_FINISH, slot.project_id, slot.key_sha256, request_id, content_key, sealed)


_FREE = """
    DELETE FROM idempotency_keys
    WHERE project_id = $1 AND key_sha256 = $2 AND request_id = $3 AND state IN ('running', 'lost')
"""


async def free_slot(conn: Connection, slot: Slot, request_id: str) -> None:
    """Free a slot under which nothing has run: the next request with this key executes."""
    await conn.execute(_FREE, slot.project_id, slot.key_sha256, request_id)


_FREE_ALL = """
    DELETE FROM idempotency_keys i
    USING unnest($1::text[], $2::bytea[], $3::text[]) AS claims (project_id, key_sha256, request_id)
    WHERE i.project_id = claims.project_id AND i.key_sha256 = claims.key_sha256 AND i.request_id = claims.request_id
      AND i.state IN ('running', 'lost')
"""


async def free_slots(conn: Connection, claims: Collection[tuple[Slot, str]]) -> None:
    """Free many slots as `free_slot` does, given as (slot, request id)."""
    await conn.execute(_FREE_ALL, *_columns(claims))


_ABANDON = """
    UPDATE idempotency_keys SET state = 'lost'
    WHERE project_id = $1 AND key_sha256 = $2 AND request_id = $3 AND state = 'running'
"""


async def abandon_slot(conn: Connection, slot: Slot, request_id: str) -> None:
    """Record that a request may have run, and that its reply is not known."""
    await conn.execute(_ABANDON, slot.project_id, slot.key_sha256, request_id)


_TOUCH = """
    UPDATE idempotency_keys i SET alive_until = now() + $4::interval
    FROM unnest($1::text[], $2::bytea[], $3::text[]) AS mine (project_id, key_sha256, request_id)
    WHERE i.project_id = mine.project_id AND i.key_sha256 = mine.key_sha256 AND i.request_id = mine.request_id
      AND i.state = 'running'
"""


async def touch_slots(conn: Connection, running: Collection[tuple[Slot, str]], alive: datetime.timedelta) -> None:
    """Record signs of life of the requests that a gateway executes, given as (slot, request id).

    alive: the time after which a request counts as lost without another sign of life.
    """
    await conn.execute(_TOUCH, *_columns(running), alive)


def _columns(of: Collection[tuple[Slot, str]]) -> tuple[list[str], list[bytes], list[str]]:
    """Return claims of slots as columns: project ids, digests of keys, request ids."""
    return [slot.project_id for slot, _ in of], [slot.key_sha256 for slot, _ in of], [id_ for _, id_ in of]


_FORGET = "DELETE FROM idempotency_keys WHERE project_id = $1 AND key_sha256 = $2 AND expires_at <= now()"


async def forget_slot(conn: Connection, slot: Slot) -> None:
    """Delete a slot whose day is over, so that its key may be claimed anew."""
    await conn.execute(_FORGET, slot.project_id, slot.key_sha256)


_EXPIRE = """
    DELETE FROM idempotency_keys WHERE ctid = ANY (ARRAY (
        SELECT ctid FROM idempotency_keys WHERE expires_at <= now() ORDER BY expires_at LIMIT $1
        FOR UPDATE SKIP LOCKED))
    RETURNING true
"""


async def expire_slots(conn: Connection) -> int:
    """Delete some slots whose day is over, of all projects. Return how many."""
    return len(await conn.fetch(_EXPIRE, EXPIRE_AT_ONCE))


_DROP_FORBIDDEN = """
    WITH forbidden AS (
        SELECT gone.project_id, gone.key_sha256 FROM projects p CROSS JOIN LATERAL (
            SELECT r.project_id, r.key_sha256 FROM kept_replies r
            WHERE r.project_id = p.id AND r.kept_at <= p.replies_from
            ORDER BY r.kept_at LIMIT $1 FOR UPDATE SKIP LOCKED) gone
        WHERE p.replies_from > '-infinity' LIMIT $1),
    dropped AS (
        DELETE FROM kept_replies r USING forbidden f
        WHERE r.project_id = f.project_id AND r.key_sha256 = f.key_sha256
        RETURNING r.project_id, r.key_sha256)
    UPDATE idempotency_keys i SET state = 'not_allowed' FROM dropped d
    WHERE i.project_id = d.project_id AND i.key_sha256 = d.key_sha256
    RETURNING true
"""


async def drop_forbidden_replies(conn: Connection) -> int:
    """Delete some of the replies that were kept before their project forbade it. Return how many."""
    return len(await conn.fetch(_DROP_FORBIDDEN, EXPIRE_AT_ONCE))


_DROP_PURGED = """
    DELETE FROM idempotency_keys WHERE ctid = ANY (ARRAY (
        SELECT gone.ctid FROM projects p CROSS JOIN LATERAL (
            SELECT i.ctid FROM idempotency_keys i WHERE i.project_id = p.id LIMIT $1 FOR UPDATE SKIP LOCKED) gone
        WHERE p.purged_at IS NOT NULL LIMIT $1))
    RETURNING true
"""


async def drop_purged_slots(conn: Connection) -> int:
    """Delete some slots of purged projects, with their replies; return how many."""
    return len(await conn.fetch(_DROP_PURGED, EXPIRE_AT_ONCE))


_DROP_OF_PROJECT = """
    DELETE FROM idempotency_keys WHERE ctid = ANY (ARRAY (
        SELECT ctid FROM idempotency_keys WHERE project_id = $1 LIMIT $2 FOR UPDATE SKIP LOCKED))
    RETURNING true
"""


async def drop_slots_of(conn: Connection, project_id: str) -> int:
    """Delete some slots of a project, with their replies. Return how many."""
    return len(await conn.fetch(_DROP_OF_PROJECT, project_id, EXPIRE_AT_ONCE))
