"""The size of the encrypted content that a project has stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.db.pool import Connection

# The length of a value that lies apart from its row is in the row: no content is read.
_STORED = """
    SELECT (SELECT coalesce(sum(octet_length(sealed)), 0) FROM kept_replies WHERE project_id = $1)
         + (SELECT coalesce(sum(octet_length(sealed)), 0) FROM request_contents WHERE project_id = $1)
         + (SELECT coalesce(sum(octet_length(sealed_metadata)::bigint + octet_length(sealed_messages)
                                + octet_length(sealed_reply)), 0)
            FROM stored_chats WHERE project_id = $1)
         + (SELECT coalesce(sum(octet_length(sealed_input)::bigint + octet_length(sealed_output)
                                + octet_length(sealed_response)), 0)
            FROM stored_responses WHERE project_id = $1)
         + (SELECT coalesce(sum(octet_length(sealed_request)::bigint + octet_length(sealed_response)), 0)
            FROM background_responses WHERE project_id = $1)
         + (SELECT coalesce(sum(octet_length(sealed)), 0) FROM background_events WHERE project_id = $1)
         + (SELECT coalesce(sum(num_bytes), 0) FROM conversations WHERE project_id = $1)
         + (SELECT coalesce(sum(octet_length(sealed_result)), 0) FROM batch_lines WHERE project_id = $1)
         + (SELECT coalesce(sum(greatest(num_bytes, 1024)), 0) FROM file_parts WHERE project_id = $1)
"""


async def stored_bytes(conn: Connection, project_id: str) -> int:
    """Return the bytes of replies, completions, responses, conversations, files and logged content of a project."""
    return int(await conn.fetchval(_STORED, project_id))
