"""Executes one request for each Idempotency-Key, over all gateways; later requests with the key get its reply.

The row that `claim_slot` inserts decides which request runs. The gateway of that request gives signs of life while the
request runs; when they stop while the database answers, nobody knows whether the request was billed, so it is never run
again. Knows neither HTTP nor SQL.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import structlog

from gateway.content.content_quota import NO_ROOM, ContentQuota
from gateway.content.refusals import (
    database_away_error,
    in_progress,
    lost_reply_error,
    reply_not_stored,
    reused_key_error,
)
from gateway.content.unanswered_claims import UnansweredClaims
from gateway.content.watches import Watches
from gateway.content.writes import Writes
from gateway.db.content import idempotency as db
from gateway.db.content.idempotency import ReplyRow, Slot, SlotRow
from gateway.db.pool import FAILURES, Database
from gateway.support.cipher import Cipher, Place, Sealed
from gateway.support.pace import Pace
from gateway.support.quota import Quota
from gateway.support.threads import maybe_in_thread
from gateway.support.worker import Worker

if TYPE_CHECKING:
    from gateway.db.pool import Connection

log = structlog.get_logger(__name__)

LASTS = datetime.timedelta(hours=24)
ALIVE = datetime.timedelta(seconds=60)
BEAT_S = 5.0
ASK_S = 5.0
LOST_AFTER_S = BEAT_S + 2 * ASK_S
"""Seconds without a sign of life, beyond ALIVE and while the database answers, after which a request is lost."""

WAIT_S = 60.0
"""The most seconds for which a request waits for the one that executes."""

WAITING_BYTES, WAITING_BYTES_OF_ONE = 64 << 20, 16 << 20
"""The most bytes of the requests that wait in one gateway, for all projects and for each."""

WAITER_BYTES = 64 << 10
"""Bytes of memory that one waiting request takes beside its body."""

MAX_REPLY_BYTES = 8 << 20
MAX_HELD_BYTES, MAX_HELD_BYTES_OF_ONE = 256 << 20, 64 << 20
"""The most bytes of replies that one gateway records or still sends, for all projects and for each."""

REPLAYS_PER_S, REPLAYS_BURST = 200.0, 1000.0
BYTES_PER_REPLAY = 64 << 10
"""The bytes of a replayed reply that count as one more replay against the limit."""


Write = Callable[["Connection"], Awaitable[None]]


class Reply(msgspec.Struct, frozen=True):
    """A reply as it went to its client."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    request_id: str = ""
    """The id of the request that was executed, which is stored beside the reply and is not encrypted."""


class Execution:
    """A request that runs because it came first.

    `finish`, `free` or `abandon` ends it; after one of the first two, `abandon` does nothing. Call `release` when its
    reply is not in memory any more.
    """

    def __init__(self, owner: Idempotency, slot: Slot, request_id: str) -> None:
        self.slot = slot
        self.request_id = request_id
        self.ended = asyncio.Event()
        self.num_held_bytes = 0
        self.is_ending = False
        self._owner = owner

    def hold(self, num_bytes: int) -> bool:
        """Reserve memory for num_bytes more of the reply; return False where there is none."""
        return self._owner.hold(self, num_bytes)

    def release(self) -> None:
        """Release the memory of the recorded reply."""
        self._owner.release(self)

    async def finish(self, reply: Reply | None) -> None:
        """Store the reply of the request, which has run. reply: None for a reply that is too large to be stored."""
        await self._owner.finish(self, reply)

    async def free(self) -> None:
        """Free the slot, since nothing has run: the next request with this key executes."""
        await self._owner.free(self)

    def abandon(self) -> None:
        """Mark the request as one that may have run, and whose reply is lost."""
        self._owner.abandon(self)


class Idempotency:
    """Decides which request of a key runs, between `start` and `stop`. A gateway process has one."""

    def __init__(
        self,
        database: Database,
        cipher: Cipher,
        writes: Writes,
        *,
        room: ContentQuota | None = None,
        wait_s: float = WAIT_S,
        lost_after_s: float = LOST_AFTER_S,
    ) -> None:
        """Start without running requests.

        room: the bound on stored content; None: there is none. wait_s: the most seconds for which a request waits for
        another one of its key. lost_after_s: the seconds without a sign of life after which a request counts as lost.
        """
        self._room = room
        self._database = database
        self._cipher = cipher
        self._writes = writes
        self._wait_s = wait_s
        self._running: dict[Slot, Execution] = {}
        self._watches = Watches(database, wait_s=wait_s, lost_after_s=lost_after_s, ask_s=ASK_S)
        self._unanswered = UnansweredClaims(database, writes, again_s=ALIVE.total_seconds(), ask_s=ASK_S)
        self._held = Quota(MAX_HELD_BYTES, MAX_HELD_BYTES_OF_ONE)
        self._waiting = Quota(WAITING_BYTES, WAITING_BYTES_OF_ONE)
        self._replays = Pace(REPLAYS_PER_S, REPLAYS_BURST, what="stored replies")
        self._beating = Worker(self.give_sign_of_life, BEAT_S, name="idempotency")

    def start(self) -> None:
        """Begin to give signs of life for requests that run here."""
        self._beating.start()

    async def stop(self) -> None:
        """Stop the heartbeats of requests that run here, and stop watching for the results of others."""
        await self._watches.stop()
        await self._beating.stop()

    async def begin(self, slot: Slot, fingerprint: bytes, request_id: str, *, num_bytes: int = 0) -> Execution | Reply:
        """Return the right to execute, or the reply of the request that executed, once it has ended.

        num_bytes: bytes of the body that is held while waiting.

        Raises InvalidRequest: when the key was used for another request.

        Raises Conflict: when there is no reply yet or any more, or too many wait for one.

        Raises LimitReached: when there are too many replies.

        Raises Overloaded: when the database cannot be asked.
        """
        deadline_s = asyncio.get_running_loop().time() + self._wait_s
        while True:
            found = await self._claim(slot, fingerprint, request_id)
            if found is None:
                execution = self._running[slot] = Execution(self, slot, request_id)
                return execution
            if found.fingerprint != fingerprint:
                raise reused_key_error()
            if found.state == "running":
                if not await self._changes_before(slot, deadline_s, WAITER_BYTES + num_bytes):
                    raise in_progress(found.request_id)
            elif (reply := await self._reply(slot, found)) is not None:
                return reply

    # calls of executions

    def hold(self, execution: Execution, num_bytes: int) -> bool:
        """Reserve memory for a part of the reply; return False where the reply is too large to be stored."""
        if execution.num_held_bytes + num_bytes > MAX_REPLY_BYTES:
            return False
        if not self._held.take(execution.slot.project_id, num_bytes):
            return False
        execution.num_held_bytes += num_bytes
        return True

    def release(self, execution: Execution) -> None:
        """Give back the memory of a reply."""
        self._held.give_back(execution.slot.project_id, execution.num_held_bytes)
        execution.num_held_bytes = 0

    @property
    def num_held_bytes(self) -> int:
        """The bytes of recorded replies that are in memory."""
        return self._held.num_held

    async def finish(self, execution: Execution, reply: Reply | None) -> None:
        """Store the reply of a request that has ended. reply: None where no reply is stored."""
        slot, request_id, sealed = execution.slot, execution.request_id, None
        if reply is not None:
            sealed = await self._seal(reply, slot)

        async def write(conn: Connection) -> None:
            key_id, data = (sealed.key_id, sealed.data) if sealed is not None else (None, None)
            if self._room is not None and data and not await self._room.take(conn, slot.project_id, len(data)):
                self._writes.count_lost("reply", NO_ROOM)
                return await without(conn)
            return await db.finish_slot(conn, slot, request_id, content_key=key_id, sealed=data)

        async def without(conn: Connection) -> None:
            await db.finish_slot(conn, slot, request_id, content_key=None, sealed=None)

        await self._end_execution(execution, write, num_bytes=0 if sealed is None else len(sealed.data), small=without)

    async def free(self, execution: Execution) -> None:
        """Free the slot of a request that has not run: the next request with its key executes."""
        await self._end_execution(execution, lambda conn: db.free_slot(conn, execution.slot, execution.request_id))

    def abandon(self, execution: Execution) -> None:
        """Mark in the background a request as one that may have run, and whose reply is lost."""
        if not execution.is_ending:
            self._begin_end(execution, lambda conn: db.abandon_slot(conn, execution.slot, execution.request_id))

    async def _end_execution(
        self, execution: Execution, write: Write, *, num_bytes: int = 0, small: Write | None = None
    ) -> None:
        await self._writes.wait_a_moment(self._begin_end(execution, write, num_bytes, small))

    def _begin_end(
        self, execution: Execution, write: Write, num_bytes: int = 0, small: Write | None = None
    ) -> asyncio.Task[None]:
        """Begin to write the end of an execution; return the task.

        small: the write to do instead where there is no room for num_bytes. Signs of life go on until the end is
        written: no gateway takes the request for lost before.
        num_bytes: the bytes of memory that the write holds.
        """
        execution.is_ending = True

        async def work(write: Write) -> None:
            async with self._database.acquire() as conn:
                await write(conn)

        def over(_: object) -> None:
            if self._running.get(execution.slot) is execution:  # the next one may run since it was written
                del self._running[execution.slot]
            execution.ended.set()

        instead = None if small is None else partial(work, small)
        task = self._writes.begin("reply", num_bytes, partial(work, write), small=instead)
        task.add_done_callback(over)
        return task

    # finding out whether a write happened

    async def _claim(self, slot: Slot, fingerprint: bytes, request_id: str) -> SlotRow | None:
        """Claim a slot for a request. Return None if the request has the slot now, else the row of the one that has it.

        Raises Overloaded: when the database does not answer.
        """
        is_asked = False
        try:
            async with asyncio.timeout(ASK_S), self._database.acquire() as conn:
                is_asked = True
                return await self._claim_slot(conn, slot, fingerprint, request_id)
        except BaseException as error:
            if is_asked:  # the row may be ours, though the answer to our write was lost
                self._unanswered.add(slot, request_id)
            if not isinstance(error, FAILURES):
                raise
            log.warning("idempotency_unavailable", error=repr(error))
            raise database_away_error() from None

    async def _claim_slot(self, conn: Connection, slot: Slot, fingerprint: bytes, request_id: str) -> SlotRow | None:
        while True:
            if await db.claim_slot(
                conn, slot, fingerprint=fingerprint, request_id=request_id, alive=ALIVE, lasts=LASTS
            ):
                return None
            if (found := await db.find_slot(conn, slot)) is not None:
                return found
            await db.forget_slot(conn, slot)  # its day is over; or it was freed just now

    async def _changes_before(self, slot: Slot, deadline_s: float, num_bytes: int) -> bool:
        """Wait until the slot may have another state; return False at deadline_s, or if too much waits already."""
        if not self._waiting.take(slot.project_id, num_bytes):
            return False
        here = self._running.get(slot)
        try:
            return await self._watches.changes_before(slot, deadline_s, here.ended if here is not None else None)
        finally:
            self._waiting.give_back(slot.project_id, num_bytes)

    async def _reply(self, slot: Slot, found: SlotRow) -> Reply | None:
        """Return the stored reply of a slot; None if it has expired just now.

        Raises Conflict: when the reply was not stored.
        Raises LimitReached: when the project has replies repeated too often.
        Raises ContentUnreadable: when this gateway lacks the reply's content key.
        """
        match found.state:
            case "lost":
                raise lost_reply_error(found.request_id)
            case "too_large":
                raise reply_not_stored(found.request_id, "the reply is too large, or there was no room for it")
            case "not_allowed":
                raise reply_not_stored(found.request_id, "this project does not allow replies to be stored")
        self._replays.take(slot.project_id, 1 + found.num_bytes / BYTES_PER_REPLAY)
        row = await self._load(slot, found.request_id)
        if row is None:
            return None
        sealed = Sealed(row.content_key, row.sealed)
        reply = await maybe_in_thread(len(sealed.data), lambda: self._cipher.open(sealed, _place(slot)))
        return msgspec.structs.replace(msgspec.msgpack.decode(reply, type=Reply), request_id=found.request_id)

    async def _load(self, slot: Slot, request_id: str) -> ReplyRow | None:
        """Return the stored reply of a slot; None if there is none.

        Raises Overloaded: when the database does not answer.
        """
        try:
            async with asyncio.timeout(ASK_S), self._database.acquire() as conn:
                return await db.load_reply(conn, slot, request_id)
        except FAILURES as error:
            log.warning("idempotency_unavailable", error=repr(error))
            raise database_away_error() from None

    async def _seal(self, reply: Reply, slot: Slot) -> Sealed:
        content = msgspec.msgpack.encode(reply)
        return await maybe_in_thread(len(content), lambda: self._cipher.seal(content, _place(slot)))

    async def give_sign_of_life(self) -> None:
        """Tell the database that the requests of this gateway run still, and free slots that were claimed for nothing.

        Raises one of `gateway.db.pool.FAILURES`: when the database fails.
        """
        running = [(slot, execution.request_id) for slot, execution in self._running.items()]
        if running:
            async with asyncio.timeout(ASK_S), self._database.acquire() as conn:
                await db.touch_slots(conn, running, ALIVE)
        await self._unanswered.free()


def _place(slot: Slot) -> Place:
    return Place(slot.project_id, "idempotency_keys", slot.key_sha256.hex())
