"""Conversations: items that responses go on from, encrypted one by one, stored for as many days as the project sets.

The items of one response are added in one transaction, so the items of a turn lie together. Two responses at once both
go on from the items that were there when each began, and add their turns in the order in which they end. Content is
JSON as the API made it: nothing here knows its fields.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from gateway.content.content_quota import NO_ROOM, ContentQuota
from gateway.content.writes import Writes
from gateway.db.content import conversations as db
from gateway.db.content.conversations import ConversationRow, ItemRow, NewItem
from gateway.db.organization import audit
from gateway.db.pool import Database
from gateway.domain.errors import QuotaExceeded
from gateway.domain.tenancy.principal import Principal
from gateway.support.cipher import Cipher, Place, Sealed
from gateway.support.threads import maybe_in_thread

if TYPE_CHECKING:
    from gateway.db.pool import Connection

MAX_CONVERSATION_BYTES = 16 << 20
"""The most bytes of a conversation's items, encrypted."""

LEAST_ITEM_BYTES = 1024
"""The bytes that a small item counts for, so that the number of items is bounded too."""

Metadata = Mapping[str, str]
Outcome = Literal["done", "absent", "too_long"]


class Conversation(msgspec.Struct, frozen=True):
    """A conversation, decrypted, without the items."""

    id: str
    created_at: datetime.datetime
    metadata: dict[str, str]


class ItemJson(msgspec.Struct, frozen=True):
    """An item, as JSON."""

    id: str
    content: bytes


class TooLong(Exception):
    """The error for a conversation that would have more items than its bound allows: the transaction is undone."""


class Conversations:
    """The conversations that a caller's key may see. A gateway process has one.

    These are the conversations of the key's project, without those to which a model has added that the key may not
    call. Methods raise the database's errors, and ContentUnreadable.
    """

    def __init__(
        self,
        database: Database,
        cipher: Cipher,
        writes: Writes,
        room: ContentQuota | None = None,
        *,
        max_bytes: int = MAX_CONVERSATION_BYTES,
    ) -> None:
        """Keep conversations.

        writes: counts the items that could not be added. room: the bound on stored content; None: there is none.
        """
        self._room = room
        self._writes = writes
        self._database = database
        self._cipher = cipher
        self._max_bytes = max_bytes

    async def create(
        self, caller: Principal, conversation_id: str, metadata: Metadata, items: Sequence[ItemJson]
    ) -> Conversation | None:
        """Make a conversation; None if the project does not allow it any more.

        Raises TooLong: for too many bytes of items.
        Raises QuotaExceeded: when there is no room for them.
        """
        project_id = caller.project_id
        sealed = self._sealed_metadata(project_id, conversation_id, metadata)
        async with self._database.transaction() as conn:
            row = await db.insert_conversation(conn, project_id, conversation_id, sealed.key_id, sealed.data)
            if row is None:
                return None
            if items:
                await self._append(conn, caller, conversation_id, items, None)
        return Conversation(row.id, row.created_at, dict(metadata))

    async def get(self, caller: Principal, conversation_id: str) -> Conversation | None:
        """Return a conversation; None where the caller has none of this id."""
        async with self._database.acquire() as conn:
            row = await db.get_conversation(conn, caller.project_id, conversation_id, caller.models)
        return None if row is None else self._decrypted_conversation(caller.project_id, row)

    async def set_metadata(self, caller: Principal, conversation_id: str, metadata: Metadata) -> Conversation | None:
        """Replace the metadata; None where there is no such conversation."""
        project_id = caller.project_id
        sealed = self._sealed_metadata(project_id, conversation_id, metadata)
        async with self._database.transaction() as conn:
            row = await db.get_conversation(conn, project_id, conversation_id, caller.models)
            if row is None:
                return None
            await db.set_metadata(conn, project_id, conversation_id, sealed.key_id, sealed.data)
        return Conversation(row.id, row.created_at, dict(metadata))

    async def delete(self, caller: Principal, conversation_id: str, *, address: str, request_id: str) -> bool:
        """Delete a conversation with its items, which the audit log records. Return False where there is none.

        address, request_id: those of the request, for the audit log.
        """
        project_id = caller.project_id
        async with self._database.transaction() as conn:
            row = await db.get_conversation(conn, project_id, conversation_id, caller.models)
            if row is None or not await db.delete_conversation(conn, project_id, conversation_id):
                return False
            author = audit.Author(
                organization_id=caller.organization_id,
                kind="api_key",
                id=caller.api_key_id,
                email=None,
                address=address,
                request_id=request_id,
            )
            before = {"id": conversation_id}
            await audit.record(
                conn, author, "conversation.deleted", conversation_id, project_id=project_id, before=before
            )
        return True

    async def append(
        self, caller: Principal, conversation_id: str, items: Sequence[ItemJson], *, model: str | None = None
    ) -> Outcome:
        """Add items to the end of a conversation, all of them or none.

        model: the model that made some of them.

        Raises QuotaExceeded: when there is no room for the items.
        """
        try:
            async with self._database.transaction() as conn:
                found = await self._append(conn, caller, conversation_id, items, model)
        except TooLong:
            return "too_long"
        return "done" if found else "absent"

    async def add_answer(
        self, caller: Principal, conversation_id: str, items: Sequence[ItemJson], *, model: str
    ) -> bool:
        """Add an answer of a model, with the input that it answers; return whether both were added.

        Adding takes at most AT_ONCE_S. Items count as lost if the database did not take them, but not if the
        conversation is full or deleted meanwhile.
        """

        async def work() -> bool:
            return await self.append(caller, conversation_id, items, model=model) == "done"

        return await self._writes.write_at_once("conversation", work)

    async def items(self, caller: Principal, conversation_id: str) -> list[ItemJson] | None:
        """Return all items, the oldest first; None where there is no such conversation."""
        async with self._database.acquire() as conn:
            if await db.get_conversation(conn, caller.project_id, conversation_id, caller.models) is None:
                return None
            rows = await db.all_items(conn, caller.project_id, conversation_id)
        return await self._opened_items(caller.project_id, conversation_id, rows)

    async def all_items(self, conn: Connection, project_id: str, conversation_id: str) -> list[ItemJson] | None:
        """Return all items, the oldest first, for readers that may see the content of the project.

        None where there is no such conversation.
        """
        if await db.get_conversation(conn, project_id, conversation_id, None) is None:
            return None
        return await self._opened_items(
            project_id, conversation_id, await db.all_items(conn, project_id, conversation_id)
        )

    async def page(
        self,
        caller: Principal,
        conversation_id: str,
        *,
        after: str | None,
        order: Literal["asc", "desc"],
        limit: int,
    ) -> tuple[list[ItemJson], bool] | Literal["absent", "unknown_cursor"]:
        """Return a page of items, and whether there is more.

        after: the id of the item before the page; None: it is the first page. Return "absent" where the caller has no
        such conversation, and "unknown_cursor" where the conversation has no item `after`.
        """
        project_id = caller.project_id
        async with self._database.acquire() as conn:
            if await db.get_conversation(conn, project_id, conversation_id, caller.models) is None:
                return "absent"
            if after is not None and await db.get_item(conn, project_id, conversation_id, after) is None:
                return "unknown_cursor"
            rows = await db.list_items(conn, project_id, conversation_id, after=after, order=order, limit=limit + 1)
        return await self._opened_items(project_id, conversation_id, rows[:limit]), len(rows) > limit

    async def item(self, caller: Principal, conversation_id: str, item_id: str) -> ItemJson | None:
        """Return an item of a conversation; None where the caller has none of this id."""
        async with self._database.acquire() as conn:
            if await db.get_conversation(conn, caller.project_id, conversation_id, caller.models) is None:
                return None
            row = await db.get_item(conn, caller.project_id, conversation_id, item_id)
        if row is None:
            return None
        return (await self._opened_items(caller.project_id, conversation_id, [row]))[0]

    async def delete_item(self, caller: Principal, conversation_id: str, item_id: str) -> Conversation | None:
        """Delete an item and return its conversation; None where there is no such item."""
        async with self._database.transaction() as conn:
            row = await db.get_conversation(conn, caller.project_id, conversation_id, caller.models)
            if row is None or not await db.remove_item(conn, caller.project_id, conversation_id, item_id):
                return None
        return self._decrypted_conversation(caller.project_id, row)

    async def _append(
        self, conn: Connection, caller: Principal, conversation_id: str, items: Sequence[ItemJson], model: str | None
    ) -> bool:
        sealed = [self._sealed_item(caller.project_id, conversation_id, item) for item in items]
        size = sum(item.num_bytes for item in sealed)
        if self._room is not None and not await self._room.take(conn, caller.project_id, size):
            raise QuotaExceeded(f"Nothing can be added: {NO_ROOM}.", param="items", code="content_quota_exceeded")
        num_bytes = await db.append_items(conn, caller.project_id, conversation_id, caller.models, sealed, model)
        if num_bytes is not None and num_bytes > self._max_bytes:
            raise TooLong
        return num_bytes is not None

    def _sealed_item(self, project_id: str, conversation_id: str, item: ItemJson) -> NewItem:
        sealed = self._cipher.seal(item.content, _place_of_item(project_id, conversation_id, item.id))
        return NewItem(item.id, max(len(sealed.data), LEAST_ITEM_BYTES), sealed.key_id, sealed.data)

    def _sealed_metadata(self, project_id: str, conversation_id: str, metadata: Metadata) -> Sealed:
        return self._cipher.seal(msgspec.json.encode(metadata), _place_of_metadata(project_id, conversation_id))

    def _decrypted_conversation(self, project_id: str, row: ConversationRow) -> Conversation:
        sealed = Sealed(row.content_key, row.sealed_metadata)
        opened = self._cipher.open(sealed, _place_of_metadata(project_id, row.id))
        return Conversation(row.id, row.created_at, msgspec.json.decode(opened, type=dict[str, str]))

    async def _opened_items(self, project_id: str, conversation_id: str, rows: Sequence[ItemRow]) -> list[ItemJson]:
        def opened() -> list[ItemJson]:
            return [
                ItemJson(
                    row.id,
                    self._cipher.open(
                        Sealed(row.content_key, row.sealed), _place_of_item(project_id, conversation_id, row.id)
                    ),
                )
                for row in rows
            ]

        return await maybe_in_thread(sum(len(row.sealed) for row in rows), opened)


def _place_of_metadata(project_id: str, conversation_id: str) -> Place:
    return Place(project_id, "conversations.metadata", conversation_id)


def _place_of_item(project_id: str, conversation_id: str, item_id: str) -> Place:
    return Place(project_id, "conversation_items.item", f"{conversation_id}/{item_id}")
