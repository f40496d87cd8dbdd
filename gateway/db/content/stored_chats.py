"""Stored chat completions, encrypted but for the columns that find them: project, id, time, model, tags of metadata.

A chat that is older than its project's days, or of a purged project, is not shown, whether it is deleted yet or not.
Nor is it shown to a key that is restricted to other models: `allowed` has the names of models, without or with a
version, whose chats may be shown; None: all.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from gateway.db.pool import replan

if TYPE_CHECKING:
    from gateway.db.pool import Connection

DROP_AT_ONCE = 1000
"""The most rows that one transaction deletes."""

MAX_PAGE_BYTES = 16 << 20
"""The most bytes of replies on a page, unless a single reply is larger."""

Order = Literal["asc", "desc"]


class ChatRow(msgspec.Struct, frozen=True):
    """A stored chat completion without the columns that are never shown."""

    id: str
    content_key: str
    """The id of the key that encrypts the sealed fields."""
    sealed_metadata: bytes
    sealed_reply: bytes


class MessagesRow(msgspec.Struct, frozen=True):
    """The encrypted messages of a stored chat completion."""

    content_key: str
    """The id of the key that encrypts the sealed fields."""
    sealed_messages: bytes


class NewChat(msgspec.Struct, frozen=True, kw_only=True):
    """A chat completion that is about to be stored."""

    project_id: str
    id: str
    model: str
    tags: Sequence[bytes]
    content_key: str
    """The id of the key that encrypts the sealed fields."""
    sealed_metadata: bytes
    sealed_messages: bytes
    sealed_reply: bytes


# The project is locked, so that nothing is stored after it was forbidden.
_INSERT = """
    WITH allowed AS (SELECT id FROM projects WHERE id = $1 AND store_days > 0 AND purged_at IS NULL FOR SHARE)
    INSERT INTO stored_chats
        (project_id, id, model, tags, content_key, sealed_metadata, sealed_messages, sealed_reply)
    SELECT allowed.id, $2, $3, $4, $5, $6, $7, $8 FROM allowed
    ON CONFLICT (project_id, id) DO NOTHING
"""


async def insert_chat(conn: Connection, chat: NewChat) -> None:
    """Store a chat, unless it is there already, or its project does not allow it any more."""
    await conn.execute(_INSERT, *msgspec.structs.astuple(chat))


_GET = """
    SELECT s.id, s.content_key, s.sealed_metadata, s.sealed_reply
    FROM stored_chats s JOIN projects p ON p.id = s.project_id
    WHERE s.project_id = $1 AND s.id = $2 AND s.created_at > now() - p.store_days * interval '1 day'
      AND p.purged_at IS NULL
      AND ($3::text[] IS NULL OR s.model = ANY ($3) OR split_part(s.model, '@', 1) = ANY ($3))
"""


async def get_chat(
    conn: Connection, project_id: str, chat_id: str, allowed: Collection[str] | None = None
) -> ChatRow | None:
    """Return a stored chat completion of a project; None where there is none.

    allowed: the models that the caller's key may use; None: all.
    """
    row = await conn.fetchrow(_GET, project_id, chat_id, _list_or_none(allowed))
    return ChatRow(**row) if row else None


_GET_MESSAGES = """
    SELECT s.content_key, s.sealed_messages
    FROM stored_chats s JOIN projects p ON p.id = s.project_id
    WHERE s.project_id = $1 AND s.id = $2 AND s.created_at > now() - p.store_days * interval '1 day'
      AND p.purged_at IS NULL
      AND ($3::text[] IS NULL OR s.model = ANY ($3) OR split_part(s.model, '@', 1) = ANY ($3))
"""


async def get_messages(
    conn: Connection, project_id: str, chat_id: str, allowed: Collection[str] | None = None
) -> MessagesRow | None:
    """Return the messages of a stored chat completion; None where there is none.

    allowed: the models that the caller's key may use; None: all.
    """
    row = await conn.fetchrow(_GET_MESSAGES, project_id, chat_id, _list_or_none(allowed))
    return MessagesRow(**row) if row else None


_LIST_ASC = """
    SELECT s.id, octet_length(s.sealed_reply) AS num_bytes
    FROM stored_chats s JOIN projects p ON p.id = s.project_id
    WHERE s.project_id = $1 AND s.created_at > now() - p.store_days * interval '1 day' AND p.purged_at IS NULL
      AND ($2::text IS NULL OR (s.created_at, s.id) >
           (SELECT created_at, id FROM stored_chats WHERE project_id = $1 AND id = $2))
      AND ($3::text IS NULL OR s.model = $3) AND s.content_key = ANY ($4::text[])
      AND ($6::text[] IS NULL OR s.model = ANY ($6) OR split_part(s.model, '@', 1) = ANY ($6))
    ORDER BY s.created_at, s.id LIMIT $5
"""
_LIST_DESC = """
    SELECT s.id, octet_length(s.sealed_reply) AS num_bytes
    FROM stored_chats s JOIN projects p ON p.id = s.project_id
    WHERE s.project_id = $1 AND s.created_at > now() - p.store_days * interval '1 day' AND p.purged_at IS NULL
      AND ($2::text IS NULL OR (s.created_at, s.id) <
           (SELECT created_at, id FROM stored_chats WHERE project_id = $1 AND id = $2))
      AND ($3::text IS NULL OR s.model = $3) AND s.content_key = ANY ($4::text[])
      AND ($6::text[] IS NULL OR s.model = ANY ($6) OR split_part(s.model, '@', 1) = ANY ($6))
    ORDER BY s.created_at DESC, s.id DESC LIMIT $5
"""
# Apart, so that the index of tags can serve: of each key, its own tags, all of them.
_LIST_TAGGED_ASC = """
    SELECT s.id, octet_length(s.sealed_reply) AS num_bytes
    FROM unnest($4::text[]) WITH ORDINALITY AS k (id, place)
         JOIN stored_chats s ON s.content_key = k.id
              AND s.tags @> ($6::bytea[])[(k.place - 1) * $7 + 1 : k.place * $7]
         JOIN projects p ON p.id = s.project_id
    WHERE s.project_id = $1 AND s.created_at > now() - p.store_days * interval '1 day' AND p.purged_at IS NULL
      AND ($2::text IS NULL OR (s.created_at, s.id) >
           (SELECT created_at, id FROM stored_chats WHERE project_id = $1 AND id = $2))
      AND ($3::text IS NULL OR s.model = $3)
      AND ($8::text[] IS NULL OR s.model = ANY ($8) OR split_part(s.model, '@', 1) = ANY ($8))
    ORDER BY s.created_at, s.id LIMIT $5
"""
_LIST_TAGGED_DESC = """
    SELECT s.id, octet_length(s.sealed_reply) AS num_bytes
    FROM unnest($4::text[]) WITH ORDINALITY AS k (id, place)
         JOIN stored_chats s ON s.content_key = k.id
              AND s.tags @> ($6::bytea[])[(k.place - 1) * $7 + 1 : k.place * $7]
         JOIN projects p ON p.id = s.project_id
    WHERE s.project_id = $1 AND s.created_at > now() - p.store_days * interval '1 day' AND p.purged_at IS NULL
      AND ($2::text IS NULL OR (s.created_at, s.id) <
           (SELECT created_at, id FROM stored_chats WHERE project_id = $1 AND id = $2))
      AND ($3::text IS NULL OR s.model = $3)
      AND ($8::text[] IS NULL OR s.model = ANY ($8) OR split_part(s.model, '@', 1) = ANY ($8))
    ORDER BY s.created_at DESC, s.id DESC LIMIT $5
"""
_GET_MANY = """
    SELECT s.id, s.content_key, s.sealed_metadata, s.sealed_reply
    FROM stored_chats s JOIN unnest($2::text[]) WITH ORDINALITY AS wanted (id, place) ON wanted.id = s.id
    WHERE s.project_id = $1 ORDER BY wanted.place
"""


async def list_chats(
    conn: Connection,
    project_id: str,
    *,
    content_keys: Collection[str],
    after: str | None,
    model: str | None,
    tags: Sequence[bytes],
    num_tags: int,
    order: Order,
    limit: int,
    allowed: Collection[str] | None = None,
) -> tuple[list[ChatRow], bool]:
    """Return the chats that follow the one with id `after`, and whether there are more.

    content_keys: all keys with which chats are encrypted. tags: num_tags tags by each of these keys in turn. Call it in
    a transaction, for a plan of these values. allowed: models that the caller's key may use; None: all. model: the
    model of the chats; None: any.
    """
    await replan(conn)
    values = (project_id, after, model, list(content_keys), limit + 1)
    if num_tags:
        values_tagged = (*values, tags, num_tags, _list_or_none(allowed))
        found = await (
            conn.fetch(_LIST_TAGGED_DESC, *values_tagged)
            if order == "desc"
            else conn.fetch(_LIST_TAGGED_ASC, *values_tagged)
        )
    else:
        values_all = (*values, _list_or_none(allowed))
        found = await (conn.fetch(_LIST_DESC, *values_all) if order == "desc" else conn.fetch(_LIST_ASC, *values_all))
    ids: list[str] = []
    num_bytes = 0
    for row in found[:limit]:
        num_bytes += row["num_bytes"]
        if ids and num_bytes > MAX_PAGE_BYTES:
            break
        ids.append(row["id"])
    rows = [ChatRow(**row) for row in await conn.fetch(_GET_MANY, project_id, ids)]
    return rows, len(found) > len(ids)


_EXISTS = """
    SELECT EXISTS (
        SELECT FROM stored_chats s WHERE s.project_id = $1 AND s.id = $2
          AND ($3::text[] IS NULL OR s.model = ANY ($3) OR split_part(s.model, '@', 1) = ANY ($3)))
"""


async def is_stored(conn: Connection, project_id: str, chat_id: str, allowed: Collection[str] | None = None) -> bool:
    """Tell whether a chat completion is stored, so that a list can go on after it.

    allowed: models that the caller's key may use; None: all.
    """
    return bool(await conn.fetchval(_EXISTS, project_id, chat_id, _list_or_none(allowed)))


_SET_METADATA = """
    UPDATE stored_chats SET tags = $4, sealed_metadata = $5
    WHERE project_id = $1 AND id = $2 AND content_key = $3
"""


async def set_metadata(
    conn: Connection, project_id: str, chat_id: str, *, content_key: str, tags: Sequence[bytes], sealed: bytes
) -> bool:
    """Set the metadata of a chat. Return False if there is none any more.

    content_key: the key that all of the row is encrypted with.
    """
    return await conn.execute(_SET_METADATA, project_id, chat_id, content_key, tags, sealed) != "UPDATE 0"


_DELETE = """
    DELETE FROM stored_chats s WHERE s.project_id = $1 AND s.id = $2
      AND ($3::text[] IS NULL OR s.model = ANY ($3) OR split_part(s.model, '@', 1) = ANY ($3))
    RETURNING s.model
"""


async def delete_chat(
    conn: Connection, project_id: str, chat_id: str, allowed: Collection[str] | None = None
) -> str | None:
    """Delete a chat completion and return the model that it was asked of; None if there is none.

    allowed: models that the caller's key may use; None: all.
    """
    model: str | None = await conn.fetchval(_DELETE, project_id, chat_id, _list_or_none(allowed))
    return model


def _list_or_none(allowed: Collection[str] | None) -> list[str] | None:
    return None if allowed is None else sorted(allowed)


# The rows of each project, by the index of its oldest; without the lateral join all rows would be read.
_DROP_OLD = """
    DELETE FROM stored_chats WHERE ctid = ANY (ARRAY (
        SELECT old.ctid FROM projects p CROSS JOIN LATERAL (
            SELECT s.ctid FROM stored_chats s
            WHERE s.project_id = p.id AND s.created_at <=
                  CASE WHEN p.purged_at IS NULL THEN now() - p.store_days * interval '1 day' ELSE 'infinity' END
            ORDER BY s.created_at LIMIT $1 FOR UPDATE SKIP LOCKED) old
        LIMIT $1))
    RETURNING true
"""


async def drop_old_chats(conn: Connection) -> int:
    """Delete some chats that are older than their project stores them, or of a purged one. Return how many."""
    return len(await conn.fetch(_DROP_OLD, DROP_AT_ONCE))


_DROP_OF_PROJECT = """
    DELETE FROM stored_chats WHERE ctid = ANY (ARRAY (
        SELECT ctid FROM stored_chats WHERE project_id = $1 LIMIT $2 FOR UPDATE SKIP LOCKED))
    RETURNING true
"""


async def drop_chats_of(conn: Connection, project_id: str) -> int:
    """Delete some of a project's stored chats; return how many."""
    return len(await conn.fetch(_DROP_OF_PROJECT, project_id, DROP_AT_ONCE))
