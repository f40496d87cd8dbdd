"""The ids of the keys that gateways encrypt kept content with, never the keys."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from gateway.db.pool import Connection

_NOTE = """
    INSERT INTO content_keys (id) VALUES ($1) ON CONFLICT (id) DO UPDATE SET used_at = now()
"""
_OTHERS = """
    SELECT id FROM content_keys WHERE NOT id = ANY ($1::text[]) AND used_at > now() - interval '1 day' ORDER BY id
"""


async def note_content_keys(conn: Connection, ids: Collection[str], writing: str) -> list[str]:
    """Record that this gateway encrypts with the key `writing` and has the keys `ids`.

    Return the ids of keys that other gateways have encrypted with of late and this one lacks.
    """
    await conn.execute(_NOTE, writing)
    return [row["id"] for row in await conn.fetch(_OTHERS, list(ids))]


MAX_COUNTED = 100_000
"""The number up to which the rows of each table are counted for one content key."""


class UnreadableRow(msgspec.Struct, frozen=True):
    """The numbers of values that are encrypted with one key; MAX_COUNTED stands for as many or more.

    id: the id of the key. num_contents: logged contents of requests.
    """

    id: str
    num_replies: int
    num_chats: int
    num_responses: int
    num_items: int
    """Conversations, and items of conversations."""
    num_files: int
    """Files, uploads and their parts, and batches and their lines."""
    num_contents: int
    num_unit_keys: int
    """Secrets of projects under which units of experiments are digested."""
    num_comments: int
    """Comments of feedback."""
    num_secrets: int
    """Seeds of authenticators, secrets of webhooks, and keys of object stores and of servers behind pools."""


_UNREADABLE = """
    SELECT k.id, replies.count AS num_replies, chats.count AS num_chats,
           responses.count AS num_responses, items.count AS num_items,
           files.count AS num_files, contents.count AS num_contents, unit_keys.count AS num_unit_keys,
           comments.count AS num_comments,
           secrets.count AS num_secrets
    FROM content_keys k
         CROSS JOIN LATERAL (SELECT count(*) FROM
             (SELECT FROM kept_replies WHERE content_key = k.id LIMIT $2) some_replies) replies
         CROSS JOIN LATERAL (SELECT count(*) FROM
             (SELECT FROM stored_chats WHERE content_key = k.id LIMIT $2) some_chats) chats
         CROSS JOIN LATERAL (SELECT count(*) FROM
             (SELECT FROM stored_responses WHERE content_key = k.id
              UNION ALL SELECT FROM background_responses WHERE content_key = k.id
              UNION ALL SELECT FROM background_events WHERE content_key = k.id LIMIT $2) some_responses) responses
         CROSS JOIN LATERAL (SELECT count(*) FROM
             (SELECT FROM conversations WHERE content_key = k.id
              UNION ALL SELECT FROM conversation_items WHERE content_key = k.id LIMIT $2) some_items) items
         CROSS JOIN LATERAL (SELECT count(*) FROM
             (SELECT FROM files WHERE content_key = k.id
              UNION ALL SELECT FROM file_uploads WHERE content_key = k.id
              UNION ALL SELECT FROM file_parts WHERE content_key = k.id
              UNION ALL SELECT FROM batches WHERE content_key = k.id
              UNION ALL SELECT FROM batch_lines WHERE content_key = k.id LIMIT $2) some_files) files
         CROSS JOIN LATERAL (SELECT count(*) FROM
             (SELECT FROM request_contents WHERE content_key = k.id LIMIT $2) some_contents) contents
         CROSS JOIN LATERAL (SELECT count(*) FROM
             (SELECT FROM experiment_keys WHERE content_key = k.id LIMIT $2) some_unit_keys) unit_keys
         CROSS JOIN LATERAL (SELECT count(*) FROM
             (SELECT FROM feedback WHERE content_key = k.id LIMIT $2) some_comments) comments
         CROSS JOIN LATERAL (SELECT count(*) FROM
             (SELECT FROM users WHERE totp_content_key = k.id
              UNION ALL SELECT FROM webhooks WHERE content_key = k.id
              UNION ALL SELECT FROM webhooks WHERE former_content_key = k.id
              UNION ALL SELECT FROM deliveries WHERE content_key = k.id
              UNION ALL SELECT FROM backend_keys WHERE content_key = k.id
              UNION ALL SELECT FROM provider_keys WHERE content_key = k.id LIMIT $2) some_secrets) secrets
    WHERE NOT k.id = ANY ($1::text[])
      AND replies.count + chats.count + responses.count + items.count + files.count + contents.count
          + unit_keys.count + comments.count + secrets.count > 0
    ORDER BY k.id
"""


async def unreadable_content(conn: Connection, ids: Collection[str]) -> list[UnreadableRow]:
    """Count the content that is encrypted with none of the keys of these ids, by the key that it needs."""
    return [UnreadableRow(**row) for row in await conn.fetch(_UNREADABLE, list(ids), MAX_COUNTED)]
