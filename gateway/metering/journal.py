"""One gateway's journal: every request that it sends, the counts that the client may have seen, and the end.

A record is handed to the kernel in the call that makes it, so a killed process has lost none. Records are synced to
disk in groups, in a thread: a group takes further records for `GROUP_S` after its first one. A segment begins with all
records that still matter, so older segments can go as soon as the new one is on disk. After a write or a sync that
failed, the content of a file is unknown: a new segment is begun, again and again until that works, and meanwhile the
records are in memory. Knows neither the database nor engines.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import structlog

from gateway.backends.usage import Count
from gateway.metering.folder import JournalFolder, Segment, put_aside
from gateway.metering.format import (
    Adopted,
    Begun,
    Copied,
    Ended,
    EndedKey,
    Opened,
    Progressed,
    Record,
    Released,
    frame,
)
from gateway.metering.unsettled import Unsettled
from gateway.support.threads import OwnThread

log = structlog.get_logger(__name__)

GROUP_S = 0.01
RETRY_S = 0.5
SEGMENT_BYTES = 4 << 20
GROWTH = 3
"""The factor by which a segment may outgrow its beginning before a new segment is begun.

Copying the records that still matter into new segments so costs at most a fixed share of all writes.
"""


class JournalState(msgspec.Struct, frozen=True):
    """The state of a journal."""

    has_room: bool
    """True if requests may begin."""
    num_bytes: int
    """The bytes of usage that the ledger does not have yet; less than max_bytes while there is room."""
    max_bytes: int
    """The bytes at which no more requests may begin."""


class Journal:
    """Takes records from the start; writes them between `start` and `stop`.

    on_durable: called with the position up to which all is on disk, as `position` counts.
    max_bytes: the most bytes of usage that the ledger does not have; beyond that no new request should run.
    spent_bytes: the most bytes of segments that are set aside once nothing needs them, as `put_aside` does.
    """

    def __init__(
        self,
        folder: JournalFolder,
        begun: Begun,
        *,
        max_bytes: int,
        on_durable: Callable[[int], Awaitable[None]],
        segment_bytes: int = SEGMENT_BYTES,
        spent_bytes: int = 0,
    ) -> None:
        self.unsettled = Unsettled()
        self.position = 0
        """The number of bytes recorded so far; a record that ends here is durable once a sync has reached this
        position."""
        self._folder = folder
        self._begun = begun
        self._max_bytes = max_bytes
        self._segment_bytes = segment_bytes
        self._spent_bytes = spent_bytes
        self._on_durable = on_durable
        self._segment: Segment | None = None
        self._rotate_at_bytes = 0
        self._left: list[Path] = []  # older segments, of no use once the current one is on disk
        self._retired: list[Segment] = []  # still open, since a sync of them may be running
        self._durable = 0
        self._dirty = asyncio.Event()
        self._synced = asyncio.Event()
        self._thread = OwnThread("journal")
        self._syncer: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        """The id of this journal."""
        return self._begun.journal_id

    @property
    def has_room(self) -> bool:
        """Tell whether new requests may run: their usage can be recorded, now and while the ledger is away."""
        return self._segment is not None and self.unsettled.num_bytes < self._max_bytes

    @property
    def is_writable(self) -> bool:
        """True if the journal can be written to."""
        return self._segment is not None

    @property
    def state(self) -> JournalState:
        """The state of the journal: how full it is."""
        return JournalState(self.has_room, self.unsettled.num_bytes, self._max_bytes)

    def open(self, opened: Opened) -> None:
        """Record that a request is sent to an engine."""
        self._record(opened)

    def progress(self, counts: list[Count]) -> None:
        """Record the tokens that clients may have seen, before any of them goes to a client."""
        self._record(Progressed(counts))

    def end(self, ended: Ended) -> None:
        """Record the end of a request. An end that is known already is not recorded again."""
        if ended.key not in self.unsettled.ended:
            self._record(ended)
        self._dirty.set()  # the caller waits until the record is durable

    def copied(self, keys: list[EndedKey]) -> None:
        """Record that the ledger has the records of these keys."""
        self._record(Copied(keys))

    def adopt(self, journal_ids: list[str]) -> None:
        """Record that this journal includes all records of other journals."""
        self._record(Adopted(journal_ids))

    def release(self, journal_ids: list[str]) -> None:
        """Record that the database knows that nothing is lost with these journals."""
        self._record(Released(journal_ids))

    def start(self) -> None:
        """Start writing.

        Records that are in the folder already must have been replayed: they are removed once all of them are on disk
        again.
        """
        self._left = self._folder.segments()
        self._begin_segment()
        self._thread.start()
        self._syncer = asyncio.create_task(self._keep_synced())

    async def flush(self, timeout_s: float) -> bool:
        """Wait until all records so far are on disk. Return False if that took longer than timeout_s."""
        target = self.position
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._durable < target or self._left:
                    self._synced.clear()
                    self._dirty.set()
                    await self._synced.wait()
        return self._durable >= target

    async def stop(self, timeout_s: float) -> None:
        """Stop writing. Only usage that the ledger does not have stays in the folder."""
        await self.flush(timeout_s)
        if self._syncer is not None:
            self._syncer.cancel()
            await asyncio.wait([self._syncer])
            await asyncio.to_thread(self._thread.stop)
        self._close_retired()
        if self._segment is not None:
            self._segment.close()
            if not self.unsettled.num_open and not self.unsettled.adopted:
                self._put_aside([self._segment.path])
            self._segment = None
        self._folder.release()

    def _record(self, record: Record) -> None:
        data = frame(record)
        self.unsettled.apply(record)
        self.position += len(data)
        self._dirty.set()
        if self._segment is None:
            return  # the next segment begins with it
        try:
            self._segment.append(data)
        except OSError as error:
            self._give_up_segment(error)
            return
        if self._segment.num_bytes > self._rotate_at_bytes:
            self._retire_segment(self._segment)
            self._begin_segment()

    def _begin_segment(self) -> None:
        data = b"".join(map(frame, [self._begun, *self.unsettled.snapshot()]))
        self._dirty.set()
        segment: Segment | None = None
        try:
            segment = self._folder.new_segment()
            segment.append(data)
        except OSError as error:
            log.error("journal_unwritable", folder=str(self._folder.path), error=str(error))
            if segment is not None:
                segment.close()
                with contextlib.suppress(OSError):
                    segment.path.unlink()
            return
        self._segment = segment
        self._rotate_at_bytes = max(self._segment_bytes, GROWTH * len(data))

    def _give_up_segment(self, error: OSError) -> None:
        assert self._segment is not None
        log.error("journal_write_failed", segment=str(self._segment.path), error=str(error))
        self._retire_segment(self._segment)
        self._dirty.set()

    def _retire_segment(self, segment: Segment) -> None:
        self._left.append(segment.path)
        self._retired.append(segment)
        self._segment = None

    async def _keep_synced(self) -> None:
        while True:
            await self._dirty.wait()
            await asyncio.sleep(GROUP_S)  # a request that is soon over is synced once, and not at both of its ends
            self._dirty.clear()
            if self._segment is None:
                self._begin_segment()
            if self._segment is None:
                await asyncio.sleep(RETRY_S)
                continue
            if await self._sync(self._segment, self.position):
                self._synced.set()
                try:
                    await self._on_durable(self._durable)
                except Exception:  # a caller without an answer keeps its record, and writes it again
                    log.exception("journal_listener_failed")

    async def _sync(self, segment: Segment, position: int) -> bool:
        """Sync the segment up to a position; return whether that succeeded.

        The position is in this segment, which began with all older records that matter.
        """
        try:
            await self._thread.call(segment.sync)
        except OSError as error:
            if self._segment is segment:
                self._give_up_segment(error)
            return False
        finally:
            self._close_retired()
        self._durable = position
        self._put_aside([path for path in self._left if path.name < segment.path.name])
        self._left = [path for path in self._left if path.name >= segment.path.name]
        return True

    def _close_retired(self) -> None:
        for segment in self._retired:
            segment.close()
        self._retired.clear()

    def _put_aside(self, paths: list[Path]) -> None:
        for path in paths:
            try:
                put_aside(path, self._spent_bytes)
            except OSError as error:  # its records are known, and may be replayed again
                log.warning("journal_segment_not_removed", segment=str(path), error=str(error))

    def put_aside(self, segments: list[Path]) -> None:
        """Rename segments of another folder as spent, once their usage is in this journal.

        Raises OSError: when a file cannot be renamed or deleted.
        """
        for segment in segments:
            put_aside(segment, self._spent_bytes)
