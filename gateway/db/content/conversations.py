"""Conversations and their items, encrypted but for the columns that find them: project, ids, times, models, sizes.

A conversation that was not changed for its project's days, or of a purged project, is not shown, whether it is deleted
yet or not. Nor is it shown to a key that is restricted to models, if another model has added items.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from gateway.db.pool import Connection

DROP_AT_ONCE = 200
"""The most conversations that one transaction deletes, with their items."""


class ConversationRow(msgspec.Struct, frozen=True):
    """A conversation, encrypted, without the items."""

    id: str
    created_at: datetime.datetime
    content_key: str
    """The id of the key that encrypts the sealed fields."""
    sealed_metadata: bytes


class ItemRow(msgspec.Struct, frozen=True):
    """An item of a conversation."""

    id: str
    content_key: str
    """The id of the key that encrypts the sealed fields."""
    sealed: bytes


class NewItem(msgspec.Struct, frozen=True):
    """An item that is about to be added to a conversation."""

    id: str
    num_bytes: int
    """The size that counts for the conversation's bound."""
    content_key: str
    """The id of the key that encrypts the sealed fields."""
    sealed: bytes


# The project is locked, so that nothing is stored after it was forbidden.
_INSERT = """
    WITH allowed AS (SELECT id FROM projects WHERE id = $1 AND store_days > 0 AND purged_at IS NULL FOR SHARE)
    INSERT INTO conversations (project_id, id, content_key, sealed_metadata)
    SELECT allowed.id, $2, $3, $4 FROM allowed
    RETURNING id, created_at, content_key, sealed_metadata
"""


async def insert_conversation(
    conn: Connection, project_id: str, conversation_id: str, content_key: str, sealed_metadata: bytes
) -> ConversationRow | None:
    """Make a conversation without items; None if its project does not allow it any more."""
    row = await conn.fetchrow(_INSERT, project_id, conversation_id, content_key, sealed_metadata)
    return ConversationRow(**row) if row else None


_GET = """
    SELECT c.id, c.created_at, c.content_key, c.sealed_metadata
    FROM conversations c JOIN projects p ON p.id = c.project_id
    WHERE c.project_id = $1 AND c.id = $2 AND c.changed_at > now() - p.store_days * interval '1 day'
      AND p.purged_at IS NULL
      AND ($3::text[] IS NULL OR NOT EXISTS (
           SELECT FROM unnest(c.models) m WHERE NOT (m = ANY ($3) OR split_part(m, '@', 1) = ANY ($3))))
"""


async def get_conversation(
    conn: Connection, project_id: str, conversation_id: str, allowed: Collection[str] | None
) -> ConversationRow | None:
    """Return a conversation of a project; None where there is none.

    allowed: the models that the caller's key may use; None: all.
    """
    row = await conn.fetchrow(_GET, project_id, conversation_id, _list_or_none(allowed))
    return ConversationRow(**row) if row else None


_SET_METADATA = """
    UPDATE conversations SET content_key = $3, sealed_metadata = $4, changed_at = now()
    WHERE project_id = $1 AND id = $2
"""


async def set_metadata(
    conn: Connection, project_id: str, conversation_id: str, content_key: str, sealed_metadata: bytes
) -> None:
    """Replace the metadata of a conversation that `get_conversation` has shown."""
    await conn.execute(_SET_METADATA, project_id, conversation_id, content_key, sealed_metadata)


_GROW = """
    UPDATE conversations c
    SET next_number = c.next_number + $4, num_bytes = c.num_bytes + $5, changed_at = now(),
        models = CASE WHEN $6::text IS NULL OR $6 = ANY (c.models) THEN c.models ELSE c.models || $6::text END
    FROM projects p
    WHERE c.project_id = $1 AND c.id = $2 AND p.id = c.project_id AND p.purged_at IS NULL
      AND c.changed_at > now() - p.store_days * interval '1 day'
      AND ($3::text[] IS NULL OR NOT EXISTS (
           SELECT FROM unnest(c.models) m WHERE NOT (m = ANY ($3) OR split_part(m, '@', 1) = ANY ($3))))
    RETURNING c.next_number - $4 AS first, c.num_bytes
"""
_ADD = """
    INSERT INTO conversation_items (project_id, conversation_id, number, id, num_bytes, content_key, sealed)
    SELECT $1, $2, $3 + i.place, i.id, i.num_bytes, i.content_key, i.sealed
    FROM unnest($4::text[], $5::bigint[], $6::text[], $7::bytea[]) WITH ORDINALITY
         AS i (id, num_bytes, content_key, sealed, place)
"""


async def append_items(
    conn: Connection,
    project_id: str,
    conversation_id: str,
    allowed: Collection[str] | None,
    items: Sequence[NewItem],
    model: str | None,
) -> int | None:
    """Add items to the end of a conversation, together, and return the bytes of the conversation.

    None where there is no such conversation. Called in a transaction, to be rolled back where the conversation is too
    large. model: the model that made some of the items. allowed: models that the caller's key may use; None: all.
    """
    num_bytes = sum(item.num_bytes for item in items)
    grown = await conn.fetchrow(
        _GROW, project_id, conversation_id, _list_or_none(allowed), len(items), num_bytes, model
    )
    if grown is None:
        return None
    columns = [[getattr(item, name) for item in items] for name in NewItem.__struct_fields__]
    await conn.execute(_ADD, project_id, conversation_id, grown["first"] - 1, *columns)
    total: int = grown["num_bytes"]
    return total


_ALL = """
    SELECT id, content_key, sealed FROM conversation_items
    WHERE project_id = $1 AND conversation_id = $2 ORDER BY number
"""
_PAGE_ASC = """
    SELECT id, content_key, sealed FROM conversation_items
    WHERE project_id = $1 AND conversation_id = $2 AND ($3::text IS NULL OR number > (
          SELECT number FROM conversation_items WHERE project_id = $1 AND conversation_id = $2 AND id = $3))
    ORDER BY number LIMIT $4
"""
_PAGE_DESC = """
    SELECT id, content_key, sealed FROM conversation_items
    WHERE project_id = $1 AND conversation_id = $2 AND ($3::text IS NULL OR number < (
          SELECT number FROM conversation_items WHERE project_id = $1 AND conversation_id = $2 AND id = $3))
    ORDER BY number DESC LIMIT $4
"""
_ONE = """
    SELECT id, content_key, sealed FROM conversation_items
    WHERE project_id = $1 AND conversation_id = $2 AND id = $3
"""


async def all_items(conn: Connection, project_id: str, conversation_id: str) -> list[ItemRow]:
    """Return the items of a conversation that `get_conversation` has shown, the oldest first."""
    return [ItemRow(**row) for row in await conn.fetch(_ALL, project_id, conversation_id)]


async def get_item(conn: Connection, project_id: str, conversation_id: str, item_id: str) -> ItemRow | None:
    """Return an item of a conversation that `get_conversation` has shown."""
    row = await conn.fetchrow(_ONE, project_id, conversation_id, item_id)
    return ItemRow(**row) if row else None


async def list_items(
    conn: Connection,
    project_id: str,
    conversation_id: str,
    *,
    after: str | None,
    order: Literal["asc", "desc"],
    limit: int,
) -> list[ItemRow]:
    """Return a page of the items of a conversation that `get_conversation` has shown.

    after: the id of the item before the page; None: it is the first page.
    """
    values = (project_id, conversation_id, after, limit)
    rows = await (conn.fetch(_PAGE_ASC, *values) if order == "asc" else conn.fetch(_PAGE_DESC, *values))
    return [ItemRow(**row) for row in rows]


_REMOVE_ITEM = """
    WITH gone AS (
        DELETE FROM conversation_items WHERE project_id = $1 AND conversation_id = $2 AND id = $3 RETURNING num_bytes)
    UPDATE conversations c SET num_bytes = c.num_bytes - gone.num_bytes, changed_at = now() FROM gone
    WHERE c.project_id = $1 AND c.id = $2
    RETURNING true
"""


async def remove_item(conn: Connection, project_id: str, conversation_id: str, item_id: str) -> bool:
    """Delete an item of a conversation that `get_conversation` has shown; False if there is none."""
    return bool(await conn.fetchval(_REMOVE_ITEM, project_id, conversation_id, item_id))


_DELETE = "DELETE FROM conversations WHERE project_id = $1 AND id = $2 RETURNING true"


async def delete_conversation(conn: Connection, project_id: str, conversation_id: str) -> bool:
    """Delete a conversation that `get_conversation` has shown, with its items; False if it is gone meanwhile."""
    return bool(await conn.fetchval(_DELETE, project_id, conversation_id))


def _list_or_none(allowed: Collection[str] | None) -> list[str] | None:
    return None if allowed is None else sorted(allowed)


# The rows of each project, by the index of its oldest; without the lateral join all rows would be read.
_DROP_OLD = """
    DELETE FROM conversations WHERE ctid = ANY (ARRAY (
        SELECT old.ctid FROM projects p CROSS JOIN LATERAL (
            SELECT c.ctid FROM conversations c
            WHERE c.project_id = p.id AND c.changed_at <=
                  CASE WHEN p.purged_at IS NULL THEN now() - p.store_days * interval '1 day' ELSE 'infinity' END
            ORDER BY c.changed_at LIMIT $1 FOR UPDATE SKIP LOCKED) old
        LIMIT $1))
    RETURNING true
"""


async def drop_old_conversations(conn: Connection) -> int:
    """Delete some conversations that were not changed for their project's days, or of a purged one. Return how many."""
    return len(await conn.fetch(_DROP_OLD, DROP_AT_ONCE))


_DROP_OF_PROJECT = """
    DELETE FROM conversations WHERE ctid = ANY (ARRAY (
        SELECT ctid FROM conversations WHERE project_id = $1 LIMIT $2 FOR UPDATE SKIP LOCKED))
    RETURNING true
"""


async def drop_conversations_of(conn: Connection, project_id: str) -> int:
    """Delete some of a project's conversations; return how many."""
    return len(await conn.fetch(_DROP_OF_PROJECT, project_id, DROP_AT_ONCE))
