"""Stored responses: each with the items of its own turn, sealed, and the id of the response that it follows.

A reply says that it is stored only once its row is written: a client that has seen the end finds it, on any gateway.
If the database does not answer in time, the reply goes out all the same, and says that it is not stored. Content is
JSON as the API made it: nothing here knows its fields.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from gateway.content.content_quota import NO_ROOM, ContentQuota
from gateway.content.writes import Writes
from gateway.db.content import background_responses as background
from gateway.db.content import stored_responses as db
from gateway.db.content.stored_responses import ItemsRow, NewResponse
from gateway.db.organization import audit
from gateway.db.pool import Database
from gateway.domain.tenancy.principal import Principal
from gateway.support.cipher import Cipher, Place, Sealed
from gateway.support.threads import maybe_in_thread

if TYPE_CHECKING:
    from gateway.db.pool import Connection

MAX_RESPONSE_BYTES = 16 << 20
"""The most bytes of a response with its items; larger ones are not stored."""

MAX_LINKS = 1000
"""The most responses in a chain, each of which follows the one before it."""

MAX_CHAIN_BYTES = 16 << 20
"""The most bytes of the items of a chain of responses, encrypted."""

MAX_REFERRED = 128
"""The most responses to which the item references of one request may lead."""


class Turn(msgspec.Struct, frozen=True):
    """The items of one response, as JSON lists."""

    id: str
    input: bytes
    """The items of the request, as a JSON list."""
    output: bytes
    """The items of the response, as a JSON list."""


class ResponseChain(msgspec.Struct, frozen=True):
    """A response with all earlier responses in its chain."""

    turns: list[Turn] | None
    """The turns, the oldest first; None where one of them is not there, or where they are too long."""
    is_too_long: bool = False
    """True if the chain is longer than may be followed."""


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A response that is to be stored."""

    id: str
    model: str
    parent_id: str | None
    """The response that this one continues; None where it continues none."""
    input: bytes
    """The items of the request, as a JSON list."""
    output: bytes
    """The items of the response, as a JSON list."""
    response: bytes
    """The response without its output, as JSON."""


class StoredResponse(msgspec.Struct, frozen=True):
    """A stored response as it is shown."""

    output: bytes
    """The items of the response, as a JSON list."""
    response: bytes
    """The response without its output, as JSON."""


class WholeResponse(msgspec.Struct, frozen=True):
    """A stored response with its input."""

    id: str
    created_at: datetime.datetime
    model: str
    parent_id: str | None
    """The response that this one continues; None where it continues none."""
    input: bytes
    """The items of the request, as a JSON list."""
    output: bytes
    """The items of the response, as a JSON list."""
    response: bytes
    """The response without its output, as JSON."""


class StoredResponses:
    """The stored responses that a caller's key may see. A gateway process has one.

    These are the responses of the key's project with models that the key may call. Methods but `store` raise the
    database's errors, and ContentUnreadable.
    """

    def __init__(
        self,
        database: Database,
        cipher: Cipher,
        writes: Writes,
        room: ContentQuota | None = None,
        *,
        max_chain_bytes: int = MAX_CHAIN_BYTES,
    ) -> None:
        """Store responses.

        writes: counts responses that could not be stored.
        room: the bound on stored content; None: there is none.
        max_chain_bytes: the most bytes of the turns that a request goes on from.
        """
        self._room = room
        self._max_chain_bytes = max_chain_bytes
        self._database = database
        self._cipher = cipher
        self._writes = writes

    async def check_room(self, project_id: str) -> None:
        """Check that a project may store a response, before the response is made.

        Raises QuotaExceeded: when there is no room for content.
        """
        if self._room is not None:
            await self._room.check(project_id)

    async def store(self, project_id: str, response: Response) -> bool:
        """Store a response and return whether it is stored, after AT_ONCE_S at most.

        A response that cannot be stored is counted and logged.
        """
        num_bytes = len(response.input) + len(response.output) + len(response.response)
        if num_bytes > MAX_RESPONSE_BYTES:
            self._writes.count_lost("response", "it is too large to be stored")
            return False
        row = await maybe_in_thread(num_bytes, lambda: self.sealed(project_id, response))

        async def work() -> bool:
            async with self._database.acquire() as conn:
                if self._room is not None and not await self._room.take(conn, project_id, num_bytes):
                    self._writes.count_lost("response", NO_ROOM)
                    return False
                return await db.insert_response(conn, row)

        return await self._writes.write_at_once("response", work)

    async def get(self, caller: Principal, response_id: str) -> StoredResponse | None:
        """Return a stored response; None where the caller has none of this id."""
        project_id = caller.project_id
        async with self._database.acquire() as conn:
            row = await db.get_response(conn, project_id, response_id, caller.models)
        if row is None:
            return None

        def opened() -> StoredResponse:
            parts = ((row.sealed_output, "output"), (row.sealed_response, "response"))
            return StoredResponse(*(self._decrypted(project_id, row.content_key, row.id, *part) for part in parts))

        return await maybe_in_thread(len(row.sealed_output) + len(row.sealed_response), opened)

    async def turn(self, caller: Principal, response_id: str) -> Turn | None:
        """Return the items of one response."""
        turns = await self.turns(caller, [response_id])
        return turns[0] if turns else None

    async def turns(self, caller: Principal, ids: Sequence[str]) -> list[Turn]:
        """Return the items of these responses, up to twice MAX_RESPONSE_BYTES; missing responses are left out."""
        async with self._database.acquire() as conn:
            rows = await db.get_items(conn, caller.project_id, ids, caller.models, max_bytes=2 * MAX_RESPONSE_BYTES)
        return await self._decrypted_turns(caller.project_id, rows)

    async def chain(self, caller: Principal, response_id: str) -> ResponseChain:
        """Return the items of a response and of all earlier responses in its chain."""
        async with self._database.acquire() as conn:
            chain = await db.get_chain(
                conn,
                caller.project_id,
                response_id,
                caller.models,
                max_links=MAX_LINKS,
                max_bytes=self._max_chain_bytes,
            )
        if not chain.is_whole:
            return ResponseChain(None, chain.is_cut)
        return ResponseChain(await self._decrypted_turns(caller.project_id, chain.rows))

    async def delete(self, caller: Principal, response_id: str, *, address: str, request_id: str) -> bool:
        """Delete a response, also one that runs in the background, which the audit log records.

        Return False where there is none. address, request_id: those of the request, for the audit log.
        """
        async with self._database.transaction() as conn:
            found = (conn, caller.project_id, response_id, caller.models)
            stored, in_background = await db.delete_response(*found), await background.delete_background(*found)
            model = stored or in_background
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
            before, project_id = {"id": response_id, "model": model}, caller.project_id
            await audit.record(
                conn, author, "stored_response.deleted", response_id, project_id=project_id, before=before
            )
        return True

    async def find_by_request(self, conn: Connection, project_id: str, request_id: str) -> WholeResponse | None:
        """Return the stored response of a request, for readers that may see the content of its project."""
        beginning = f"resp_{request_id.removeprefix('req_')}"
        row = await db.response_of_request(conn, project_id, beginning)
        if row is None:
            return None

        def opened() -> WholeResponse:
            parts = ((row.sealed_input, "input"), (row.sealed_output, "output"), (row.sealed_response, "response"))
            found = [self._decrypted(project_id, row.content_key, row.id, *part) for part in parts]
            return WholeResponse(row.id, row.created_at, row.model, row.parent_id, *found)

        return await maybe_in_thread(len(row.sealed_input) + len(row.sealed_output), opened)

    async def insert(self, conn: Connection, row: NewResponse) -> bool:
        """Store a response in the caller's transaction, without a check of the content quota.

        Return False where the project does not allow the response any more.
        """
        return await db.insert_response(conn, row)

    def sealed(self, project_id: str, response: Response) -> NewResponse:
        """Return a response with its content encrypted, as the database stores it."""

        def seal(content: bytes, part: str) -> bytes:
            return self._cipher.seal(content, _place(project_id, response.id, part)).data

        return NewResponse(
            project_id=project_id,
            id=response.id,
            model=response.model,
            parent_id=response.parent_id,
            content_key=self._cipher.key_id,
            sealed_input=seal(response.input, "input"),
            sealed_output=seal(response.output, "output"),
            sealed_response=seal(response.response, "response"),
        )

    async def _decrypted_turns(self, project_id: str, rows: Sequence[ItemsRow]) -> list[Turn]:
        def opened() -> list[Turn]:
            return [self._decrypted_turn(project_id, row) for row in rows]

        return await maybe_in_thread(sum(len(row.sealed_input) + len(row.sealed_output) for row in rows), opened)

    def _decrypted_turn(self, project_id: str, row: ItemsRow) -> Turn:
        parts = ((row.sealed_input, "input"), (row.sealed_output, "output"))
        return Turn(row.id, *(self._decrypted(project_id, row.content_key, row.id, *part) for part in parts))

    def _decrypted(self, project_id: str, key_id: str, response_id: str, sealed: bytes, part: str) -> bytes:
        return self._cipher.open(Sealed(key_id, sealed), _place(project_id, response_id, part))


def _place(project_id: str, response_id: str, part: str) -> Place:
    return Place(project_id, f"stored_responses.{part}", response_id)
