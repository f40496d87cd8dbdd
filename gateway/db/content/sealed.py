"""Reads encrypted columns of all tables, to check whether the present keys open them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class SealedRow(msgspec.Struct, frozen=True):
    """One encrypted value and the place that it was encrypted for."""

    project_id: str
    """The id of the project, or the text in its place for values that belong to no project."""
    name: str
    """The table and, where it has several such columns, the column."""
    id: str
    content_key: str
    """The id of the key that encrypts the sealed fields."""
    sealed: bytes


NOT_READ = {
    "kept_replies": "replies of a day, known by a digest of the client's key",
    "background_responses": "a restore runs none again",
    "background_events": "a restore runs none again",
    "request_contents": "in no backup",
    "batch_lines": "lines of batches that had not ended, which a restore cancels",
    "file_parts": "the content is in the file store",
}
"""Tables with encrypted content that `newest_sealed` leaves out, with the reason for each."""

NEWEST = """
    (SELECT project_id, 'stored_chats.metadata' AS name, id, content_key, sealed_metadata AS sealed
     FROM stored_chats
     ORDER BY created_at DESC
     LIMIT $1)
    UNION ALL
    (SELECT project_id, 'stored_chats.messages', id, content_key, sealed_messages
     FROM stored_chats
     ORDER BY created_at DESC
     LIMIT $1)
    UNION ALL
    (SELECT project_id, 'stored_chats.reply', id, content_key, sealed_reply
     FROM stored_chats
     ORDER BY created_at DESC
     LIMIT $1)
    UNION ALL
    (SELECT project_id, 'stored_responses.input', id, content_key, sealed_input
     FROM stored_responses
     ORDER BY created_at DESC
     LIMIT $1)
    UNION ALL
    (SELECT project_id, 'stored_responses.output', id, content_key, sealed_output
     FROM stored_responses
     ORDER BY created_at DESC
     LIMIT $1)
    UNION ALL
    (SELECT project_id, 'stored_responses.response', id, content_key, sealed_response
     FROM stored_responses
     ORDER BY created_at DESC
     LIMIT $1)
    UNION ALL
    (SELECT project_id, 'conversations.metadata', id, content_key, sealed_metadata
     FROM conversations
     ORDER BY created_at DESC
     LIMIT $1)
    UNION ALL
    (SELECT project_id, 'conversation_items.item', conversation_id || '/' || id, content_key, sealed
     FROM conversation_items
     LIMIT $1)
    UNION ALL
    (SELECT project_id, 'batches.metadata', id, content_key, sealed_metadata
     FROM batches
     ORDER BY created_at DESC
     LIMIT $1)
    UNION ALL
    (SELECT project_id, 'files.name', id, content_key, sealed_name
     FROM files
     ORDER BY created_at DESC
     LIMIT $1)
    UNION ALL
    (SELECT project_id, 'file_uploads.name', id, content_key, sealed_name
     FROM file_uploads
     ORDER BY created_at DESC
     LIMIT $1)
    UNION ALL
    (SELECT project_id, 'experiment_keys', project_id, content_key, sealed
     FROM experiment_keys
     LIMIT $1)
    UNION ALL
    (SELECT project_id, 'feedback.comment', id, content_key, sealed_comment
     FROM feedback
     WHERE content_key IS NOT NULL
     ORDER BY received_at DESC
     LIMIT $1)
    UNION ALL
    (SELECT pool_id, 'backend_keys', pool_id, content_key, sealed
     FROM backend_keys
     LIMIT $1)
    UNION ALL
    (SELECT project_id, 'provider_keys', pool_id, content_key, sealed
     FROM provider_keys
     LIMIT $1)
    UNION ALL
    (SELECT organization_id, 'users.totp_secret', id, totp_content_key, totp_secret
     FROM users
     WHERE totp_content_key IS NOT NULL
     LIMIT $1)
    UNION ALL
    (SELECT organization_id, 'webhooks.secret', id, content_key, secret
     FROM webhooks
     WHERE content_key IS NOT NULL
     LIMIT $1)
    UNION ALL
    (SELECT organization_id, 'webhooks.former_secret', id, former_content_key, former_secret
     FROM webhooks
     WHERE former_content_key IS NOT NULL AND former_secret IS NOT NULL
     LIMIT $1)
    UNION ALL
    (SELECT organization_id, 'deliveries.secret', name, content_key, secret
     FROM deliveries
     WHERE content_key IS NOT NULL AND secret IS NOT NULL
     LIMIT $1)
"""
"""The query of all encrypted columns; of tables that may have many rows it reads the newest ones."""


async def newest_sealed(conn: Connection, limit: int) -> list[SealedRow]:
    """Return the newest values of each encrypted column, up to `limit` of each."""
    return [SealedRow(*row) for row in await conn.fetch(NEWEST, limit)]


class SealedPart(msgspec.Struct, frozen=True):
    """A part of a tenant's file, whose pieces are in the file store."""

    project_id: str
    id: str
    num_bytes: int
    content_key: str
    """The id of the key that encrypts the sealed fields."""


_PARTS = """
    SELECT project_id, id, num_bytes, content_key FROM file_parts WHERE state = 'whole' ORDER BY project_id, id
"""


async def whole_parts(conn: Connection) -> list[SealedPart]:
    """Return all parts of files whose pieces have to be in the file store."""
    return [SealedPart(*row) for row in await conn.fetch(_PARTS)]
