"""Responses that run in the background, and the events of their streams, encrypted but for ids, models and numbers.

The gateway that runs a response holds a lease with a fencing number: each statement of its run names the number, and
one that another gateway has taken over from changes nothing. Times are the database's.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from gateway.db.pool import Connection

DROP_AT_ONCE = 1000
"""The most rows that one transaction deletes."""

EVENT_RETENTION_MINUTES = 60
"""The minutes for which the events of a response that has ended are kept."""

TABLE = "background_responses"
"""The name of the table in the notices by which gateways learn of a change."""

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class NewBackground(msgspec.Struct, frozen=True, kw_only=True):
    """A background response that is about to be stored."""

    project_id: str
    id: str
    model: str
    api_key_id: str
    num_events: int
    content_key: str
    """The id of the key that encrypts the sealed fields."""
    sealed_request: bytes
    sealed_response: bytes


class Segment(msgspec.Struct, frozen=True):
    """Events that follow one another."""

    first_number: int
    """The number of the first event, from 0."""
    num_events: int
    content_key: str
    """The id of the key that encrypts the sealed fields."""
    sealed: bytes


class RunTurn(msgspec.Struct, frozen=True):
    """The right of one gateway to run one response."""

    project_id: str
    id: str
    owner: str
    """The id of the gateway."""
    fence: int
    """The number of the claim, as in `ClaimedRow`."""


class ClaimedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A response that a gateway is to run."""

    project_id: str
    id: str
    fence: int
    """The number of this claim among the claims of the response; a gateway with an earlier one may not write."""
    api_key_id: str
    num_events: int
    """The number of events that are stored already."""
    content_key: str
    """The id of the key that encrypts the sealed fields."""
    sealed_request: bytes
    sealed_response: bytes
    is_cancelled: bool
    age_s: float
    """The seconds since the request."""


class BackgroundRow(msgspec.Struct, frozen=True):
    """The present state of a response."""

    status: Status
    num_events: int
    content_key: str
    """The id of the key that encrypts the sealed fields."""
    sealed_response: bytes


class HeldRow(msgspec.Struct, frozen=True):
    """A background response that a gateway holds the lease of."""

    project_id: str
    id: str
    fence: int
    """The number of the claim, as in `ClaimedRow`."""
    is_cancelled: bool


# The project is locked, so that nothing is stored after it was forbidden, and so that its open responses are counted.
_INSERT = """
    WITH allowed AS (
        SELECT id FROM projects WHERE id = $1 AND store_days > 0 AND purged_at IS NULL FOR NO KEY UPDATE)
    INSERT INTO background_responses
        (project_id, id, model, api_key_id, status, num_events, content_key, sealed_request, sealed_response)
    SELECT allowed.id, $2, $3, $4, 'queued', $5, $6, $7, $8 FROM allowed
    WHERE (SELECT count(*) FROM background_responses WHERE project_id = $1 AND ended_at IS NULL) < $9
    RETURNING true
"""


async def insert_background(conn: Connection, new: NewBackground, first: Segment, *, max_open: int) -> bool:
    """Queue a response with its first events, in a transaction of the caller's.

    Return False where the project does not allow the response any more, or has max_open responses that have not
    ended.
    """
    if not await conn.fetchval(_INSERT, *msgspec.structs.astuple(new), max_open):
        return False
    await conn.execute(_INSERT_SEGMENT, new.project_id, new.id, *msgspec.structs.astuple(first))
    await _announce(conn, new.project_id, new.id)
    return True


_INSERT_SEGMENT = """
    INSERT INTO background_events (project_id, response_id, first_number, num_events, content_key, sealed)
    VALUES ($1, $2, $3, $4, $5, $6)
"""

# Projects that run few come first. One that is to be cancelled needs no place.
_CLAIM = """
    WITH running AS (
        SELECT project_id, count(*) AS number FROM background_responses
        WHERE ended_at IS NULL AND lease_until > now() AND owner IS NOT NULL GROUP BY project_id),
    next AS (
        SELECT b.project_id, b.id FROM background_responses b LEFT JOIN running r ON r.project_id = b.project_id
        WHERE b.ended_at IS NULL AND (b.lease_until IS NULL OR b.lease_until <= now() OR
                                      (b.owner IS NULL AND b.cancel_at IS NOT NULL))
          AND (coalesce(r.number, 0) < $3 OR b.cancel_at IS NOT NULL)
        ORDER BY b.cancel_at IS NULL, coalesce(r.number, 0), b.created_at
        LIMIT 1 FOR UPDATE OF b SKIP LOCKED)
    UPDATE background_responses b
    SET owner = $1, lease_until = now() + $2 * interval '1 second', fence = fence + 1, status = 'in_progress'
    FROM next WHERE b.project_id = next.project_id AND b.id = next.id
    RETURNING b.project_id, b.id, b.fence, b.api_key_id, b.num_events, b.content_key, b.sealed_request,
              b.sealed_response, b.cancel_at IS NOT NULL AS is_cancelled,
              extract(epoch FROM now() - b.created_at)::float8 AS age_s
"""


async def claim_background(conn: Connection, owner: str, *, lease_s: float, max_per_project: int) -> ClaimedRow | None:
    """Take the next response that no gateway runs; None where there is none.

    max_per_project: the most responses of one project that run at once.
    """
    row = await conn.fetchrow(_CLAIM, owner, lease_s, max_per_project)
    return ClaimedRow(**row) if row else None


_PUT_BACK = """
    UPDATE background_responses
    SET owner = NULL, lease_until = now() + $5 * interval '1 second', status = 'queued'
    WHERE project_id = $1 AND id = $2 AND owner = $3 AND fence = $4 AND ended_at IS NULL
"""


async def put_back(conn: Connection, turn: RunTurn, *, again_s: float) -> None:
    """Give a response without events back, to be taken again after some seconds."""
    await conn.execute(_PUT_BACK, *msgspec.structs.astuple(turn), again_s)


_HOLD = """
    UPDATE background_responses SET lease_until = now() + $2 * interval '1 second'
    WHERE owner = $1 AND id = ANY ($3) AND ended_at IS NULL
    RETURNING project_id, id, fence, cancel_at IS NOT NULL AS is_cancelled
"""


async def hold_background(conn: Connection, owner: str, ids: Collection[str], *, lease_s: float) -> list[HeldRow]:
    """Renew the leases of the responses that a gateway runs, and return those that it still holds."""
    return [HeldRow(**row) for row in await conn.fetch(_HOLD, owner, lease_s, list(ids))]


_GIVE_UP = """
    UPDATE background_responses
    SET status = 'failed', ended_at = now(), owner = NULL, lease_until = NULL, sealed_request = ''
    WHERE project_id = $1 AND id = $2 AND owner = $3 AND fence = $4 AND ended_at IS NULL
"""


async def give_up_background(conn: Connection, turn: RunTurn) -> None:
    """End a response as failed, whose content cannot be read."""
    await conn.execute(_GIVE_UP, *msgspec.structs.astuple(turn))


_APPEND = """
    WITH mine AS (
        UPDATE background_responses SET num_events = $5 + $6
        WHERE project_id = $1 AND id = $2 AND owner = $3 AND fence = $4 AND ended_at IS NULL AND num_events = $5
        RETURNING true)
    INSERT INTO background_events (project_id, response_id, first_number, num_events, content_key, sealed)
    SELECT $1, $2, $5, $6, $7, $8 FROM mine
    RETURNING true
"""


async def append_events(conn: Connection, turn: RunTurn, segment: Segment) -> bool:
    """Add the next events of a stream; return False where this gateway no longer has the response."""
    return bool(await conn.fetchval(_APPEND, *msgspec.structs.astuple(turn), *msgspec.structs.astuple(segment)))


_END = """
    UPDATE background_responses
    SET status = $5, ended_at = now(), owner = NULL, lease_until = NULL, content_key = $6, sealed_request = $7,
        sealed_response = $8
    WHERE project_id = $1 AND id = $2 AND owner = $3 AND fence = $4 AND ended_at IS NULL
    RETURNING true
"""


# OpenAI's event, with the time as Standard Webhooks have it.
_NOTIFY = """
    INSERT INTO webhook_deliveries (id, webhook_id, body)
    SELECT 'msg_' || told.id, w.id, json_build_object(
        'id', 'evt_' || told.id, 'object', 'event', 'type', $3::text,
        'created_at', extract(epoch FROM clock_timestamp())::bigint,
        'timestamp', to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
        'data', json_build_object('id', $2::text, 'project_id', p.id))::text
    FROM projects p JOIN webhooks w ON w.organization_id = p.organization_id
         CROSS JOIN LATERAL (SELECT replace(gen_random_uuid()::text, '-', '') AS id WHERE w.id IS NOT NULL) told
    WHERE p.id = $1 AND $3 = ANY (w.events)
"""


async def end_background(
    conn: Connection, turn: RunTurn, status: Status, *, content_key: str, sealed_request: bytes, sealed_response: bytes
) -> bool:
    """Set a response's final status, and queue its webhooks; return False as `append_events` does.

    sealed_request: b"" where the response is stored with its input elsewhere.
    """
    values = (*msgspec.structs.astuple(turn), status, content_key, sealed_request, sealed_response)
    if not await conn.fetchval(_END, *values):
        return False
    await conn.execute(_NOTIFY, turn.project_id, turn.id, f"response.{status}")
    return True


_GET = """
    SELECT b.status, b.num_events, b.content_key, b.sealed_response
    FROM background_responses b JOIN projects p ON p.id = b.project_id WHERE
      b.project_id = $1 AND b.id = $2 AND b.created_at > now() - p.store_days * interval '1 day'
      AND p.purged_at IS NULL
      AND ($3::text[] IS NULL OR b.model = ANY ($3) OR split_part(b.model, '@', 1) = ANY ($3))
"""


async def get_background(
    conn: Connection, project_id: str, response_id: str, allowed: Collection[str] | None
) -> BackgroundRow | None:
    """Return a background response of a project; None where there is none.

    allowed: the models that the caller's key may use; None: all.
    """
    row = await conn.fetchrow(_GET, project_id, response_id, _list_or_none(allowed))
    return BackgroundRow(**row) if row else None


_GET_REQUEST = """
    SELECT b.content_key, b.sealed_request FROM background_responses b JOIN projects p ON p.id = b.project_id WHERE
      b.project_id = $1 AND b.id = $2 AND b.created_at > now() - p.store_days * interval '1 day'
      AND p.purged_at IS NULL
      AND ($3::text[] IS NULL OR b.model = ANY ($3) OR split_part(b.model, '@', 1) = ANY ($3))
"""


async def get_background_request(
    conn: Connection, project_id: str, response_id: str, allowed: Collection[str] | None
) -> tuple[str, bytes] | None:
    """Return the encrypted request of a response, after the id of the content key that encrypts it.

    The request is b"" if the response is stored with its input elsewhere.

    allowed: models that the caller's key may use; None: all.
    """
    row = await conn.fetchrow(_GET_REQUEST, project_id, response_id, _list_or_none(allowed))
    return (row["content_key"], row["sealed_request"]) if row else None


_PROGRESS = """
    SELECT b.project_id, b.id, b.status, b.num_events
    FROM unnest($1::text[], $2::text[]) AS wanted (project_id, id)
         JOIN background_responses b ON b.project_id = wanted.project_id AND b.id = wanted.id
"""


async def get_progress(
    conn: Connection, wanted: Collection[tuple[str, str]]
) -> dict[tuple[str, str], tuple[Status, int]]:
    """Return the status and the number of events of responses, by project and id; missing ones are left out."""
    projects, ids = [project for project, _ in wanted], [id for _, id in wanted]
    rows = await conn.fetch(_PROGRESS, projects, ids)
    return {(row["project_id"], row["id"]): (row["status"], row["num_events"]) for row in rows}


_EVENTS = """
    SELECT first_number, num_events, content_key, sealed FROM background_events
    WHERE project_id = $1 AND response_id = $2 AND first_number + num_events > $3
    ORDER BY first_number LIMIT $4
"""


async def get_events(conn: Connection, project_id: str, response_id: str, *, number: int, limit: int) -> list[Segment]:
    """Return rows of events, from the row that holds the event of this number on."""
    return [Segment(**row) for row in await conn.fetch(_EVENTS, project_id, response_id, number, limit)]


_CANCEL = """
    UPDATE background_responses b SET cancel_at = coalesce(b.cancel_at, now())
    FROM projects p WHERE p.id = b.project_id AND
      b.project_id = $1 AND b.id = $2 AND b.created_at > now() - p.store_days * interval '1 day'
      AND p.purged_at IS NULL
      AND ($3::text[] IS NULL OR b.model = ANY ($3) OR split_part(b.model, '@', 1) = ANY ($3))
    RETURNING b.status
"""


async def ask_to_cancel(
    conn: Connection, project_id: str, response_id: str, allowed: Collection[str] | None
) -> Status | None:
    """Ask the gateway that runs a response to end it, and return its status; None where there is no response.

    allowed: models that the caller's key may use; None: all.
    """
    status: Status | None = await conn.fetchval(_CANCEL, project_id, response_id, _list_or_none(allowed))
    if status is not None:
        await _announce(conn, project_id, response_id)
    return status


_DELETE = """
    DELETE FROM background_responses b USING projects p WHERE p.id = b.project_id AND
      b.project_id = $1 AND b.id = $2 AND b.created_at > now() - p.store_days * interval '1 day'
      AND p.purged_at IS NULL
      AND ($3::text[] IS NULL OR b.model = ANY ($3) OR split_part(b.model, '@', 1) = ANY ($3))
    RETURNING b.model
"""


async def delete_background(
    conn: Connection, project_id: str, response_id: str, allowed: Collection[str] | None
) -> str | None:
    """Delete a response with its events, and return the model that it was asked of; None if there is none.

    allowed: models that the caller's key may use; None: all.
    """
    model: str | None = await conn.fetchval(_DELETE, project_id, response_id, _list_or_none(allowed))
    if model is not None:
        await _announce(conn, project_id, response_id)
    return model


async def _announce(conn: Connection, project_id: str, response_id: str) -> None:
    """Notify gateways that listen for the response. A gateway that misses the notice looks again by itself."""
    event = json.dumps({"version": 0, "table": TABLE, "id": response_id, "project_id": project_id})
    await conn.execute("SELECT pg_notify('lorikeet_changes', $1)", event)


def _list_or_none(allowed: Collection[str] | None) -> list[str] | None:
    return None if allowed is None else sorted(allowed)


_DROP_OLD = """
    DELETE FROM background_responses WHERE ctid = ANY (ARRAY (
        SELECT old.ctid FROM projects p CROSS JOIN LATERAL (
            SELECT b.ctid FROM background_responses b
            WHERE b.project_id = p.id AND b.created_at <=
                  CASE WHEN p.purged_at IS NULL THEN now() - p.store_days * interval '1 day' ELSE 'infinity' END
            ORDER BY b.created_at LIMIT $1 FOR UPDATE SKIP LOCKED) old
        LIMIT $1))
    RETURNING true
"""


async def drop_old_responses(conn: Connection) -> int:
    """Delete some responses that are older than their project stores them, or of a purged one. Return how many."""
    return len(await conn.fetch(_DROP_OLD, DROP_AT_ONCE))


_DROP_EVENTS = """
    DELETE FROM background_events WHERE ctid = ANY (ARRAY (
        SELECT e.ctid FROM background_events e
             JOIN background_responses b ON b.project_id = e.project_id AND b.id = e.response_id
        WHERE b.ended_at < now() - $2 * interval '1 minute' LIMIT $1 FOR UPDATE OF e SKIP LOCKED))
    RETURNING true
"""


async def drop_old_events(conn: Connection) -> int:
    """Delete some of the events of responses that ended a while ago; return the number of deleted rows."""
    return len(await conn.fetch(_DROP_EVENTS, DROP_AT_ONCE, EVENT_RETENTION_MINUTES))


_DROP_OF_PROJECT = """
    DELETE FROM background_responses WHERE ctid = ANY (ARRAY (
        SELECT ctid FROM background_responses WHERE project_id = $1 LIMIT $2 FOR UPDATE SKIP LOCKED))
    RETURNING true
"""


async def drop_responses_of(conn: Connection, project_id: str) -> int:
    """Delete some of a project's background responses; return how many."""
    return len(await conn.fetch(_DROP_OF_PROJECT, project_id, DROP_AT_ONCE))
