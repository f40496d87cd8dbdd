"""Stored chat completions: completions with `store`, for the days that the project allows.

They are encrypted before they are stored and decrypted when they are read. A reply waits for its row for a moment, so
that a client that has seen the end finds it; a database that is away neither fails the reply nor holds it up for long.
Content is JSON as the API made it: nothing here knows its fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gateway.content.content_quota import NO_ROOM, ContentQuota
from gateway.content.writes import Writes
from gateway.db.content import stored_chats as db
from gateway.db.content.stored_chats import ChatRow, NewChat, Order
from gateway.db.organization import audit
from gateway.db.pool import Database
from gateway.domain.tenancy.principal import Principal
from gateway.support.cipher import Cipher, Place, Sealed
from gateway.support.threads import maybe_in_thread

MAX_CHAT_BYTES = 16 << 20
"""The most bytes of messages and reply together; larger chats are not stored."""

Metadata = Mapping[str, str]


class Chat(msgspec.Struct, frozen=True, kw_only=True):
    """A chat completion to be stored."""

    id: str
    model: str
    metadata: Metadata
    messages: bytes
    """The messages of the request, as JSON."""
    reply: bytes
    """The reply, as JSON."""


class StoredChat(msgspec.Struct, frozen=True):
    """The parts of a stored chat completion that its client gets."""

    id: str
    metadata: dict[str, str]
    reply: bytes
    """The reply as it was stored, as JSON."""


class ListQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The chats of a page."""

    after: str | None
    """The id of the chat that the page follows."""
    limit: int
    order: Order
    model: str | None
    metadata: Metadata
    """Pairs that all chats of the page have."""


class StoredChats:
    """The stored chats that a caller's key may see. A gateway process has one.

    These are the chats of the key's project with models that the key may call. Methods but `store` raise the database's
    errors, and ContentUnreadable.
    """

    def __init__(self, database: Database, cipher: Cipher, writes: Writes, room: ContentQuota | None = None) -> None:
        """Store chats. room: the bound on stored content; None: there is none."""
        self._database = database
        self._cipher = cipher
        self._writes = writes
        self._room = room

    async def check_room(self, project_id: str) -> None:
        """Check that a project may store a chat, before the chat is made.

        Raises QuotaExceeded: when there is no room for content.
        """
        if self._room is not None:
            await self._room.check(project_id)

    async def store(self, project_id: str, chat: Chat) -> None:
        """Store a chat, and wait for at most a moment until it is stored.

        A chat that cannot be stored is counted and logged.
        """
        num_bytes = len(chat.messages) + len(chat.reply)
        if num_bytes > MAX_CHAT_BYTES:
            return self._writes.count_lost("chat", "it is too large to be stored")
        row = await maybe_in_thread(num_bytes, lambda: self._encrypted_chat(project_id, chat))

        async def work() -> None:
            async with self._database.acquire() as conn:
                if self._room is not None and not await self._room.take(conn, project_id, num_bytes):
                    return self._writes.count_lost("chat", NO_ROOM)
                await db.insert_chat(conn, row)
                return None

        return await self._writes.wait_a_moment(self._writes.begin("chat", num_bytes, work))

    async def get(self, caller: Principal, chat_id: str) -> StoredChat | None:
        """Return a stored chat completion; None where the caller has none of this id."""
        project_id = caller.project_id
        async with self._database.acquire() as conn:
            row = await db.get_chat(conn, project_id, chat_id, caller.models)
        return None if row is None else (await self._decrypted_chats(project_id, [row]))[0]

    async def messages(self, caller: Principal, chat_id: str) -> bytes | None:
        """Return the messages of a chat's request as JSON."""
        project_id = caller.project_id
        async with self._database.acquire() as conn:
            row = await db.get_messages(conn, project_id, chat_id, caller.models)
        if row is None:
            return None
        sealed, place = Sealed(row.content_key, row.sealed_messages), _place(project_id, chat_id, "messages")
        return await maybe_in_thread(len(sealed.data), lambda: self._cipher.open(sealed, place))

    async def list_page(self, caller: Principal, query: ListQuery) -> tuple[list[StoredChat], bool] | None:
        """Return (a page, whether there is more), or None where there is no chat with the id `after`.

        Chats that are encrypted with keys that are not here are left out.
        """
        project_id, allowed, key_ids = caller.project_id, caller.models, self._cipher.key_ids
        tags = [tag for key_id in key_ids for tag in self._cipher.tags(query.metadata, project_id, key_id)]
        async with self._database.transaction() as conn:
            if query.after is not None and not await db.is_stored(conn, project_id, query.after, allowed):
                return None
            rows, has_more = await db.list_chats(
                conn,
                project_id,
                content_keys=key_ids,
                after=query.after,
                model=query.model,
                tags=tags,
                num_tags=len(query.metadata),
                order=query.order,
                limit=query.limit,
                allowed=allowed,
            )
        return await self._decrypted_chats(project_id, rows), has_more

    async def set_metadata(self, caller: Principal, chat_id: str, metadata: Metadata) -> StoredChat | None:
        """Replace the metadata and return the chat completion as it is then; None where there is none."""
        project_id = caller.project_id
        async with self._database.acquire() as conn:
            row = await db.get_chat(conn, project_id, chat_id, caller.models)
            if row is None:
                return None
            (found,) = await self._decrypted_chats(project_id, [row])  # also: the key is here
            key_id = row.content_key
            sealed = self._cipher.seal(
                msgspec.json.encode(metadata), _place(project_id, chat_id, "metadata"), key_id=key_id
            )
            tags = self._cipher.tags(metadata, project_id, key_id)
            changed = await db.set_metadata(
                conn, project_id, chat_id, content_key=key_id, tags=tags, sealed=sealed.data
            )
        return msgspec.structs.replace(found, metadata=dict(metadata)) if changed else None

    async def delete(self, caller: Principal, chat_id: str, *, address: str, request_id: str) -> bool:
        """Delete a chat completion, which the audit log records. Return False where there is none.

        address, request_id: those of the request, for the audit log.
        """
        async with self._database.transaction() as conn:
            model = await db.delete_chat(conn, caller.project_id, chat_id, caller.models)
            if model is None:
                return False
            author = audit.Author(
                organization_id=caller.organization_id,
                kind="api_key",
                id=caller.api_key_id,
                email=None,
                address=address,
                request_id=request_id,
            )
            before, project_id = {"id": chat_id, "model": model}, caller.project_id
            await audit.record(conn, author, "stored_completion.deleted", chat_id, project_id=project_id, before=before)
        return True

    def _encrypted_chat(self, project_id: str, chat: Chat) -> NewChat:
        def seal(content: bytes, part: str) -> bytes:
            return self._cipher.seal(content, _place(project_id, chat.id, part)).data

        return NewChat(
            project_id=project_id,
            id=chat.id,
            model=chat.model,
            tags=self._cipher.tags(chat.metadata, project_id),
            content_key=self._cipher.key_id,
            sealed_metadata=seal(msgspec.json.encode(chat.metadata), "metadata"),
            sealed_messages=seal(chat.messages, "messages"),
            sealed_reply=seal(chat.reply, "reply"),
        )

    async def _decrypted_chats(self, project_id: str, rows: Sequence[ChatRow]) -> list[StoredChat]:
        num_bytes = sum(len(row.sealed_reply) for row in rows)
        return await maybe_in_thread(num_bytes, lambda: [self._decrypted_chat(project_id, row) for row in rows])

    def _decrypted_chat(self, project_id: str, row: ChatRow) -> StoredChat:
        def opened(sealed: bytes, part: str) -> bytes:
            return self._cipher.open(Sealed(row.content_key, sealed), _place(project_id, row.id, part))

        metadata = msgspec.json.decode(opened(row.sealed_metadata, "metadata"), type=dict[str, str])
        return StoredChat(row.id, metadata, opened(row.sealed_reply, "reply"))


def _place(project_id: str, chat_id: str, part: str) -> Place:
    return Place(project_id, f"stored_chats.{part}", chat_id)
