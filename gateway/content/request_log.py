"""The log of the content of a project's requests and replies, where the project wants it.

Content is redacted, encrypted, and deleted after the project's days. No reply waits for that: once a reply is over, its
content is redacted, encrypted and written in the background, with a bound on memory of its own. Content that does not
fit, or cannot be written, is counted as lost.
"""

from __future__ import annotations

import asyncio
import datetime
from typing import TYPE_CHECKING

import msgspec

from gateway.content.content_quota import NO_ROOM, ContentQuota
from gateway.content.transcript import Content, Transcript
from gateway.content.writes import Writes
from gateway.db.content import request_contents as db
from gateway.db.pool import Database
from gateway.support.cipher import Cipher, Place, Sealed

if TYPE_CHECKING:
    from gateway.db.pool import Connection

MAX_WAITING_BYTES = 64 << 20
"""The most bytes that wait to be written in one gateway."""

WRITES_AT_ONCE = 4
"""The most writes at a time, so that requests find free connections."""

_CONTENT = msgspec.json.Decoder(Content)


class LoggedContent(msgspec.Struct, frozen=True):
    """The decrypted content of one request, and when it is deleted."""

    created_at: datetime.datetime
    expires_at: datetime.datetime
    content: Content


class RequestContents:
    """The logged contents of requests. A gateway process has one.

    writes: writes that only this log uses, with a bound of MAX_WAITING_BYTES.
    `read` raises the database's errors, and ContentUnreadable.
    """

    def __init__(self, database: Database, cipher: Cipher, writes: Writes, room: ContentQuota | None = None) -> None:
        """Log the contents of requests. room: the bound on stored content; None: there is none."""
        self._database = database
        self._cipher = cipher
        self._writes = writes
        self._room = room
        self._places = asyncio.Semaphore(WRITES_AT_ONCE)

    def keep(self, project_id: str, transcript: Transcript) -> None:
        """Have a transcript written in the background, and return at once."""
        sealed: list[Sealed] = []

        async def work() -> None:
            async with self._places:
                if not sealed:
                    sealed.append(await asyncio.to_thread(self._encrypted_content, project_id, transcript))
                async with self._database.acquire() as conn:
                    data = sealed[0].data
                    if self._room is not None and not await self._room.take(conn, project_id, len(data)):
                        return self._writes.count_lost("content", NO_ROOM)
                    await db.insert_content(
                        conn, project_id, transcript.request_id, content_key=sealed[0].key_id, sealed=data
                    )
                    return None

        self._writes.begin("content", transcript.num_bytes, work)

    async def read(self, conn: Connection, project_id: str, request_id: str) -> LoggedContent | None:
        """Return the content of a request; None where there is none, or it is not to be shown."""
        row = await db.get_content(conn, project_id, request_id)
        if row is None:
            return None
        opened = self._cipher.open(Sealed(row.content_key, row.sealed), _place(project_id, request_id))
        return LoggedContent(row.created_at, row.expires_at, _CONTENT.decode(opened))

    def _encrypted_content(self, project_id: str, transcript: Transcript) -> Sealed:
        return self._cipher.seal(msgspec.json.encode(transcript.content()), _place(project_id, transcript.request_id))


def _place(project_id: str, request_id: str) -> Place:
    return Place(project_id, "request_contents", request_id)
