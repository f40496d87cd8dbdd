"""Responses that run in the background: queued before their reply, and run by one gateway at a time.

The events of their streams are stored, so that any gateway can send them again under the same numbers. Content is JSON
and events as the API made them: nothing here knows their fields. Methods raise the database's errors, and
ContentUnreadable.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence

import msgspec

from gateway.content.content_quota import ContentQuota
from gateway.content.stored_responses import Response, StoredResponses
from gateway.db.content import background_responses as db
from gateway.db.content.background_responses import ClaimedRow, NewBackground, RunTurn, Segment, Status
from gateway.db.ledger.usage import BilledTokens, billed_tokens
from gateway.db.pool import Database
from gateway.domain.errors import ContentUnreadable
from gateway.domain.tenancy.principal import Principal
from gateway.support.cipher import Cipher, Place, Sealed

MAX_OPEN = 200
"""The most responses of one project that are queued or run."""

SEGMENTS_AT_ONCE = 64
FINAL = frozenset(("completed", "incomplete", "failed", "cancelled"))

_ZLIB_LEVEL = 1


class Events(msgspec.Struct, frozen=True):
    """Successive events of a background response, encoded as its stream sends them."""

    encoded: list[bytes]
    counts: bytes = b""
    """The number of tokens up to the last of these events, as the runner counts them."""


class ClaimedResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A response that this gateway is to run."""

    turn: RunTurn
    api_key_id: str
    """The key with which the response was asked for."""
    request: bytes
    """The request as it was stored (`BackgroundRequest`), as JSON."""
    response: bytes
    """The response as it was queued, as JSON."""
    num_events: int
    """The number of events that are stored already."""
    is_cancelled: bool
    age_s: float
    """The seconds since the request."""


class ResponseState(msgspec.Struct, frozen=True):
    """The present state of a response."""

    status: Status
    response: bytes
    """The response as JSON."""


class BackgroundResponses:
    """The background responses of all projects, as one gateway process sees them. A gateway process has one."""

    def __init__(
        self, database: Database, cipher: Cipher, stored: StoredResponses, room: ContentQuota | None = None
    ) -> None:
        """Keep background responses.

        stored: the store to which responses are added when they end. room: the bound on stored content; None: no bound.
        """
        self._database = database
        self._cipher = cipher
        self._stored = stored
        self._room = room

    async def queue(
        self,
        caller: Principal,
        response_id: str,
        model: str,
        *,
        request: bytes,
        response: bytes,
        events: Sequence[bytes],
    ) -> bool:
        """Queue a response with its first events.

        Return False where the project has too many responses that have not ended, or does not allow the response any
        more.
        """
        project_id = caller.project_id
        new = NewBackground(
            project_id=project_id,
            id=response_id,
            model=model,
            api_key_id=caller.api_key_id,
            num_events=len(events),
            content_key=self._cipher.key_id,
            sealed_request=self._seal(project_id, response_id, "request", request),
            sealed_response=self._seal(project_id, response_id, "response", response),
        )
        first = self._segment(project_id, response_id, 0, Events(list(events)))
        async with self._database.transaction() as conn:
            if self._room is not None and not await self._room.take(conn, project_id, len(request) + len(response)):
                return False
            return await db.insert_background(conn, new, first, max_open=MAX_OPEN)

    async def claim(self, owner: str, *, lease_s: float, max_per_project: int) -> ClaimedResponse | None:
        """Take the next response that no gateway runs; None where there is none.

        owner: the id of this gateway. lease_s: the seconds after which another gateway may take the response.
        max_per_project: the most responses of one project that run at once.
        """
        async with self._database.acquire() as conn:
            row = await db.claim_background(conn, owner, lease_s=lease_s, max_per_project=max_per_project)
            if row is None:
                return None
            try:
                return self._decrypted_claim(owner, row)
            except ContentUnreadable:  # by any gateway with these keys
                await db.give_up_background(conn, RunTurn(row.project_id, row.id, owner, row.fence))
                raise

    async def put_back(self, turn: RunTurn, *, again_s: float) -> None:
        """Give a response without events back, to be taken again after some seconds."""
        async with self._database.acquire() as conn:
            await db.put_back(conn, turn, again_s=again_s)

    async def hold(self, owner: str, ids: Collection[str], *, lease_s: float) -> dict[tuple[str, int], bool]:
        """Renew the leases of the responses that a gateway runs.

        Return the responses that the gateway still holds, by id and fencing number; True for one that is to be
        cancelled.
        """
        async with self._database.acquire() as conn:
            rows = await db.hold_background(conn, owner, ids, lease_s=lease_s)
        return {(row.id, row.fence): row.is_cancelled for row in rows}

    async def append(self, turn: RunTurn, first_number: int, events: Events) -> bool:
        """Add the next events; return False where another gateway has the response by now.

        first_number: the number of the first of these events in the response's stream.
        """
        segment = self._segment(turn.project_id, turn.id, first_number, events)
        async with self._database.acquire() as conn:
            return await db.append_events(conn, turn, segment)

    async def end(
        self,
        turn: RunTurn,
        first_number: int,
        events: Events,
        status: Status,
        response: bytes,
        stored: Response | None,
        request: bytes,
    ) -> bool:
        """Add the last events, set the final status, and store the response like any other, all in one transaction.

        Return False where another gateway has the response by now. stored: the response to store; None where no further
        response can follow it, and then the request is kept. first_number: the number of the first of these events in
        the response's stream. request: the request of the response, as JSON.
        """
        segment = self._segment(turn.project_id, turn.id, first_number, events)
        sealed = self._seal(turn.project_id, turn.id, "response", response)
        kept = self._seal(turn.project_id, turn.id, "request", request) if stored is None else b""
        row = None if stored is None else self._stored.sealed(turn.project_id, stored)
        async with self._database.transaction() as conn:
            if not await db.append_events(conn, turn, segment):
                return False
            if not await db.end_background(
                conn,
                turn,
                status,
                content_key=self._cipher.key_id,
                sealed_request=kept,
                sealed_response=sealed,
            ):
                return False
            if row is not None:
                await self._stored.insert(conn, row)
        return True

    async def give_up(self, turn: RunTurn, response: bytes) -> None:
        """End a response as failed, without further events."""
        sealed = self._seal(turn.project_id, turn.id, "response", response)
        async with self._database.transaction() as conn:
            await db.end_background(
                conn, turn, "failed", content_key=self._cipher.key_id, sealed_request=b"", sealed_response=sealed
            )

    async def get(self, caller: Principal, response_id: str) -> ResponseState | None:
        """Return a response that the caller's key may see."""
        async with self._database.acquire() as conn:
            row = await db.get_background(conn, caller.project_id, response_id, caller.models)
        if row is None:
            return None
        sealed = Sealed(row.content_key, row.sealed_response)
        return ResponseState(row.status, self._cipher.open(sealed, _place(caller.project_id, response_id, "response")))

    async def request(self, caller: Principal, response_id: str) -> bytes | None:
        """Return the request for a response that the caller's key may see.

        Return None where there is no such response, b"" where the response is stored with its input.
        """
        async with self._database.acquire() as conn:
            found = await db.get_background_request(conn, caller.project_id, response_id, caller.models)
        if found is None or not found[1]:
            return None if found is None else b""
        return self._cipher.open(Sealed(*found), _place(caller.project_id, response_id, "request"))

    async def billed(self, project_id: str, row_ids: Sequence[str]) -> BilledTokens | None:
        """Return the tokens of a run as the ledger has them by now. row_ids: the ids that the run's rows may have."""
        async with self._database.acquire() as conn:
            return await billed_tokens(conn, project_id, row_ids)

    async def status(self, caller: Principal, response_id: str) -> tuple[Status, int] | None:
        """Return the status of a response that the caller's key may see, and its number of events so far."""
        async with self._database.acquire() as conn:
            row = await db.get_background(conn, caller.project_id, response_id, caller.models)
        return None if row is None else (row.status, row.num_events)

    async def progress(self, wanted: Collection[tuple[str, str]]) -> dict[tuple[str, str], tuple[Status, int]]:
        """Return the status and the number of events of responses, by project and id, without missing ones."""
        async with self._database.acquire() as conn:
            return await db.get_progress(conn, wanted)

    async def events(self, project_id: str, response_id: str, number: int) -> list[tuple[int, Events]]:
        """Return events from a number on, as many as are read at once, each run of events with its first number."""
        async with self._database.acquire() as conn:
            rows = await db.get_events(conn, project_id, response_id, number=number, limit=SEGMENTS_AT_ONCE)
        return [(row.first_number, self._decrypted_events(project_id, response_id, row)) for row in rows]

    async def cancel(self, caller: Principal, response_id: str) -> Status | None:
        """Ask for a response to be cancelled, and return its status; None where there is no such response."""
        async with self._database.transaction() as conn:
            return await db.ask_to_cancel(conn, caller.project_id, response_id, caller.models)

    def _decrypted_claim(self, owner: str, row: ClaimedRow) -> ClaimedResponse:
        def opened(sealed: bytes, part: str) -> bytes:
            return self._cipher.open(Sealed(row.content_key, sealed), _place(row.project_id, row.id, part))

        return ClaimedResponse(
            turn=RunTurn(row.project_id, row.id, owner, row.fence),
            api_key_id=row.api_key_id,
            request=opened(row.sealed_request, "request"),
            response=opened(row.sealed_response, "response"),
            num_events=row.num_events,
            is_cancelled=row.is_cancelled,
            age_s=row.age_s,
        )

    def _segment(self, project_id: str, response_id: str, first_number: int, events: Events) -> Segment:
        data = zlib.compress(msgspec.msgpack.encode(events), _ZLIB_LEVEL)
        sealed = self._cipher.seal(data, _place(project_id, f"{response_id}.{first_number}", "events"))
        return Segment(first_number, len(events.encoded), sealed.key_id, sealed.data)

    def _decrypted_events(self, project_id: str, response_id: str, row: Segment) -> Events:
        place = _place(project_id, f"{response_id}.{row.first_number}", "events")
        data = self._cipher.open(Sealed(row.content_key, row.sealed), place)
        return msgspec.msgpack.decode(zlib.decompress(data), type=Events)

    def _seal(self, project_id: str, response_id: str, part: str, content: bytes) -> bytes:
        return self._cipher.seal(content, _place(project_id, response_id, part)).data


def _place(project_id: str, id: str, part: str) -> Place:
    return Place(project_id, f"background_responses.{part}", id)
