"""Stored responses, encrypted but for the columns that find them: project, id, time, model, and the response before.

A response that is older than its project's days, or of a purged project, is not shown, whether it is deleted yet or
not. Nor is it shown to a key that is restricted to other models, as in `stored_chats`.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from gateway.db.pool import Connection

DROP_AT_ONCE = 1000
"""The most rows that one transaction deletes."""


class NewResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response that is about to be stored."""

    project_id: str
    id: str
    model: str
    parent_id: str | None
    content_key: str
    """The id of the key that encrypts the sealed fields."""
    sealed_input: bytes
    sealed_output: bytes
    sealed_response: bytes


class ResponseRow(msgspec.Struct, frozen=True):
    """A stored response as it is shown."""

    id: str
    content_key: str
    """The id of the key that encrypts the sealed fields."""
    sealed_output: bytes
    sealed_response: bytes


class WholeRow(msgspec.Struct, frozen=True, kw_only=True):
    """All of a stored response."""

    id: str
    created_at: datetime.datetime
    model: str
    parent_id: str | None
    content_key: str
    """The id of the key that encrypts the sealed fields."""
    sealed_input: bytes
    sealed_output: bytes
    sealed_response: bytes


class ItemsRow(msgspec.Struct, frozen=True):
    """The items of a stored response."""

    id: str
    parent_id: str | None
    content_key: str
    """The id of the key that encrypts the sealed fields."""
    sealed_input: bytes
    sealed_output: bytes


class Chain(msgspec.Struct, frozen=True):
    """Responses that follow one another."""

    rows: list[ItemsRow]
    """The rows of the chain, the oldest first."""
    is_whole: bool
    """True if the first row follows no other response."""
    is_cut: bool
    """True if the chain was not read to its beginning because it is too long."""


# The project is locked, so that nothing is stored after it was forbidden. Only a write that is tried again conflicts.
_INSERT = """
    WITH allowed AS (SELECT id FROM projects WHERE id = $1 AND store_days > 0 AND purged_at IS NULL FOR SHARE)
    INSERT INTO stored_responses
        (project_id, id, model, parent_id, content_key, sealed_input, sealed_output, sealed_response)
    SELECT allowed.id, $2, $3, $4, $5, $6, $7, $8 FROM allowed
    ON CONFLICT (project_id, id) DO UPDATE SET model = EXCLUDED.model
    RETURNING true
"""


async def insert_response(conn: Connection, response: NewResponse) -> bool:
    """Store a response; False if its project does not allow it any more."""
    return bool(await conn.fetchval(_INSERT, *msgspec.structs.astuple(response)))


_GET = """
    SELECT s.id, s.content_key, s.sealed_output, s.sealed_response
    FROM stored_responses s JOIN projects p ON p.id = s.project_id
    WHERE s.project_id = $1 AND s.id = $2 AND s.created_at > now() - p.store_days * interval '1 day'
      AND p.purged_at IS NULL
      AND ($3::text[] IS NULL OR s.model = ANY ($3) OR split_part(s.model, '@', 1) = ANY ($3))
"""


async def get_response(
    conn: Connection, project_id: str, response_id: str, allowed: Collection[str] | None
) -> ResponseRow | None:
    """Return a stored response of a project; None where there is none.

    allowed: the models that the caller's key may use; None: all.
    """
    row = await conn.fetchrow(_GET, project_id, response_id, _list_or_none(allowed))
    return ResponseRow(**row) if row else None


# In an experiment the id of a response has more after that of its request.
_GET_OF_REQUEST = """
    SELECT s.id, s.created_at, s.model, s.parent_id, s.content_key, s.sealed_input, s.sealed_output, s.sealed_response
    FROM stored_responses s JOIN projects p ON p.id = s.project_id
    WHERE s.project_id = $1 AND s.id >= $2 AND s.id < $2 || '~' AND p.purged_at IS NULL
      AND s.created_at > now() - p.store_days * interval '1 day'
    ORDER BY s.id LIMIT 1
"""


async def response_of_request(conn: Connection, project_id: str, response_id: str) -> WholeRow | None:
    """Return the whole stored response of a request. response_id: the response's id, or its beginning."""
    row = await conn.fetchrow(_GET_OF_REQUEST, project_id, response_id)
    return WholeRow(**row) if row else None


_GET_ITEMS = """
    SELECT id, parent_id, content_key, sealed_input, sealed_output
    FROM (SELECT s.id, s.parent_id, s.content_key, s.sealed_input, s.sealed_output,
                 sum(octet_length(s.sealed_input) + octet_length(s.sealed_output)) OVER (ORDER BY s.id) AS num_bytes
          FROM stored_responses s JOIN projects p ON p.id = s.project_id
          WHERE s.project_id = $1 AND s.id = ANY ($2) AND s.created_at > now() - p.store_days * interval '1 day'
            AND p.purged_at IS NULL
            AND ($3::text[] IS NULL OR s.model = ANY ($3) OR split_part(s.model, '@', 1) = ANY ($3))) sized
    WHERE num_bytes <= $4
"""


async def get_items(
    conn: Connection, project_id: str, ids: Sequence[str], allowed: Collection[str] | None, *, max_bytes: int
) -> list[ItemsRow]:
    """Return the items of these responses, within max_bytes together; missing responses are left out.

    allowed: models that the caller's key may use; None: all.
    """
    rows = await conn.fetch(_GET_ITEMS, project_id, list(ids), _list_or_none(allowed), max_bytes)
    return [ItemsRow(**row) for row in rows]


# Links are followed by their sizes alone: content is read only of responses that the bounds let through.
_CHAIN = """
    WITH RECURSIVE chain AS (
        SELECT s.id, s.parent_id, 1 AS link,
               (octet_length(s.sealed_input) + octet_length(s.sealed_output))::bigint AS num_bytes
        FROM stored_responses s JOIN projects p ON p.id = s.project_id
        WHERE s.project_id = $1 AND s.id = $2 AND s.created_at > now() - p.store_days * interval '1 day'
          AND p.purged_at IS NULL
          AND ($3::text[] IS NULL OR s.model = ANY ($3) OR split_part(s.model, '@', 1) = ANY ($3))
        UNION ALL
        SELECT s.id, s.parent_id, c.link + 1,
               c.num_bytes + octet_length(s.sealed_input) + octet_length(s.sealed_output)
        FROM chain c JOIN stored_responses s ON s.project_id = $1 AND s.id = c.parent_id
             JOIN projects p ON p.id = s.project_id
        WHERE c.link < $4 AND c.num_bytes <= $5 AND s.created_at > now() - p.store_days * interval '1 day'
          AND p.purged_at IS NULL
          AND ($3::text[] IS NULL OR s.model = ANY ($3) OR split_part(s.model, '@', 1) = ANY ($3))
    )
    SELECT s.id, s.parent_id, s.content_key, s.sealed_input, s.sealed_output, c.link, c.num_bytes
    FROM chain c JOIN stored_responses s ON s.project_id = $1 AND s.id = c.id
    WHERE c.num_bytes <= $5 OR c.link = 1
    ORDER BY c.link DESC
"""


async def get_chain(
    conn: Connection,
    project_id: str,
    response_id: str,
    allowed: Collection[str] | None,
    *,
    max_links: int,
    max_bytes: int,
) -> Chain:
    """Return a response and the earlier ones of its chain, within the bounds.

    allowed: models that the caller's key may use; None: all.
    """
    found = await conn.fetch(_CHAIN, project_id, response_id, _list_or_none(allowed), max_links, max_bytes)
    rows = [ItemsRow(*(row[name] for name in ItemsRow.__struct_fields__)) for row in found]
    if not rows or rows[0].parent_id is None:
        return Chain(rows, is_whole=bool(rows), is_cut=False)
    is_cut = found[0]["link"] >= max_links or await _is_there(conn, project_id, rows[0].parent_id, allowed)
    return Chain(rows, is_whole=False, is_cut=is_cut)


async def _is_there(conn: Connection, project_id: str, response_id: str, allowed: Collection[str] | None) -> bool:
    return await conn.fetchrow(_GET, project_id, response_id, _list_or_none(allowed)) is not None


_DELETE = """
    DELETE FROM stored_responses s USING projects p
    WHERE s.project_id = $1 AND s.id = $2 AND p.id = s.project_id AND p.purged_at IS NULL
      AND s.created_at > now() - p.store_days * interval '1 day'
      AND ($3::text[] IS NULL OR s.model = ANY ($3) OR split_part(s.model, '@', 1) = ANY ($3))
    RETURNING s.model
"""


async def delete_response(
    conn: Connection, project_id: str, response_id: str, allowed: Collection[str] | None
) -> str | None:
    """Delete a response and return the model that it was asked of; None if there is none.

    allowed: models that the caller's key may use; None: all.
    """
    model: str | None = await conn.fetchval(_DELETE, project_id, response_id, _list_or_none(allowed))
    return model


def _list_or_none(allowed: Collection[str] | None) -> list[str] | None:
    return None if allowed is None else sorted(allowed)


# The rows of each project, by the index of its oldest; without the lateral join all rows would be read.
_DROP_OLD = """
    DELETE FROM stored_responses WHERE ctid = ANY (ARRAY (
        SELECT old.ctid FROM projects p CROSS JOIN LATERAL (
            SELECT s.ctid FROM stored_responses s
            WHERE s.project_id = p.id AND s.created_at <=
                  CASE WHEN p.purged_at IS NULL THEN now() - p.store_days * interval '1 day' ELSE 'infinity' END
            ORDER BY s.created_at LIMIT $1 FOR UPDATE SKIP LOCKED) old
        LIMIT $1))
    RETURNING true
"""


async def drop_old_responses(conn: Connection) -> int:
    """Delete some responses that are older than their project stores them, or of a purged one. Return how many."""
    return len(await conn.fetch(_DROP_OLD, DROP_AT_ONCE))


_DROP_OF_PROJECT = """
    DELETE FROM stored_responses WHERE ctid = ANY (ARRAY (
        SELECT ctid FROM stored_responses WHERE project_id = $1 LIMIT $2 FOR UPDATE SKIP LOCKED))
    RETURNING true
"""


async def drop_responses_of(conn: Connection, project_id: str) -> int:
    """Delete some of a project's stored responses; return how many."""
    return len(await conn.fetch(_DROP_OF_PROJECT, project_id, DROP_AT_ONCE))
