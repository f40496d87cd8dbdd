"""Takes batches that no gateway works on, renews their leases while this gateway does, and gives them back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import msgspec
import structlog

from gateway.batches.ending import end_batch
from gateway.batches.feed import Queued
from gateway.batches.lines import LineReader
from gateway.batches.running import BatchLost, Pause, RunningLines, wait_of
from gateway.batches.service import BatchError, place_of
from gateway.batches.services import BatchServices
from gateway.batches.validation import Verdict, check_file
from gateway.db.batches import work as db
from gateway.db.batches.turns import share_turns
from gateway.db.batches.work import LeasedBatch, ProjectBatches
from gateway.db.due_work import RARELY_S
from gateway.db.limits.limits import exceeded_enqueued
from gateway.db.organization.keys import find_usable_key_by_id
from gateway.db.pool import FAILURES, UNAVAILABLE
from gateway.domain.batches.line import BatchWait
from gateway.domain.errors import GatewayError
from gateway.domain.limits.limit import Limit
from gateway.domain.tenancy.principal import Principal
from gateway.support.cipher import Sealed
from gateway.support.worker import Worker
from gateway.tenancy.authenticate import principal_of

log = structlog.get_logger(__name__)

NONE = ProjectBatches(0, 0)

POLL_S = 1.0
RENEW_S = 0.8
"""The least seconds between two renewals of leases: the dispatcher may be woken more often."""
MAX_CHECKED, MAX_BATCHES, MAX_ENDING = 2, 16, 4
"""The most batches whose file a gateway checks, whose lines it runs and whose files it writes at once. None of these
keeps places of another: large files, which take long to check and to write, hold up nobody's lines."""

Stage = Literal["checking", "running", "ending"]
STAGES: dict[Stage, tuple[int, tuple[str, ...]]] = {
    "ending": (MAX_ENDING, db.ENDED),
    "running": (MAX_BATCHES, db.RUN),
    "checking": (MAX_CHECKED, db.CHECKED),
}
"""For each stage of a batch, the number of batches that a gateway works on at once, and their statuses."""

SLICE_S = 10.0
"""Seconds after which a batch gives its place to one of a project that has fewer at work."""

QUEUE_S = 10.0
"""Seconds between two reads of the batches that wait for a gateway."""

AGAIN_S = 10.0
"""Seconds after which a batch that cannot continue now is tried again."""

AT_ONCE = Pause(0.0)
NO_KEY = BatchWait(
    "api_key_not_usable",
    "The API key that made the batch may not run requests now: it is suspended, revoked or expired, or its project or "
    "organization is suspended.",
)

TOO_LATE = Verdict(
    0, [BatchError("batch_expired", "The file could not be checked before the completion window expired.")]
)


class _Work(msgspec.Struct, eq=False):
    """A batch that this gateway works on."""

    batch: LeasedBatch
    stage: Stage
    must_rest: asyncio.Event
    """The event after which no line of the batch is begun."""
    began_s: float
    """The time at which the work began, by the clock of the event loop."""
    task: asyncio.Task[None] | None = None
    """The task that works on the batch; None before it has begun."""

    def cancel(self) -> None:
        """Stop the work."""
        if self.task is not None:
            self.task.cancel()


class Dispatcher:
    """Takes batches and works on them between `start` and `stop`."""

    def __init__(self, tools: BatchServices, gateway_id: str, wake: asyncio.Event | None = None) -> None:
        """Make a dispatcher that works on no batch yet.

        tools: the services that the work uses. gateway_id: names this gateway in the rows of its batches. wake: set
        when a batch may wait; None: the dispatcher polls every POLL_S, as it does while it works on batches.
        """
        self._tools = tools
        self._gateway_id = gateway_id
        self._working: dict[tuple[str, str], _Work] = {}
        self._polling = Worker(self._poll, self._interval_s, name="batches", wake=wake)
        self._idle_s = POLL_S if wake is None else RARELY_S
        self._renewed_s = self._queued_s = float("-inf")

    def start(self) -> None:
        """Begin to look for batches that nobody works on, at each interval and whenever the dispatcher is woken."""
        self._polling.start()

    async def stop(self) -> None:
        """Give up all batches. Their running lines are aborted, and begun anew by another gateway."""
        await self._polling.stop()
        tasks = [work.task for work in self._working.values() if work.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _poll(self) -> None:
        """Renew the leases of this gateway's batches, and take batches that no gateway works on."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._renewed_s >= RENEW_S:
            self._renewed_s = now_s
            await self._renew()
            await self._share_turns()
        if self._working and now_s - self._queued_s >= QUEUE_S:
            self._queued_s = now_s
            await self._look_at_queue()
        for stage, (_, statuses) in STAGES.items():
            room = self._room(stage)
            if room > 0:
                async with self._tools.database.acquire() as conn:
                    leased = await db.lease_batches(conn, self._gateway_id, room, statuses)
                for batch in leased:
                    self._begin_work(batch, stage, now_s)
        if not self._room("running"):
            async with self._tools.database.acquire() as conn:
                standings = await db.count_project_batches(conn)
            feed, working = self._tools.feed, list(self._working.values())
            work = gives_place(working, standings, now_s, is_urgent=feed.is_urgent, hopeless=feed.hopeless)
            if work is not None:
                work.must_rest.set()

    def _room(self, stage: Stage) -> int:
        """Return the number of free places of a stage."""
        return STAGES[stage][0] - sum(work.stage == stage for work in self._working.values())

    def _begin_work(self, batch: LeasedBatch, stage: Stage, now_s: float) -> None:
        key = (batch.project_id, batch.id)
        if key in self._working:  # an older lease of this gateway's own
            self._working[key].cancel()
        work = self._working[key] = _Work(batch, stage, asyncio.Event(), now_s)
        work.task = asyncio.create_task(self._work_on(work))

    async def _share_turns(self) -> None:
        """Tell other gateways how much each project's batches were charged here, and learn the same from them."""
        charged = self._tools.feed.charged()
        if charged:
            async with self._tools.database.acquire() as conn:
                tags = await share_turns(conn, charged)
            self._tools.feed.share(charged, tags)

    async def _look_at_queue(self) -> None:
        """Tell the feed which batches wait for a gateway, since they may put deadlines in danger."""
        async with self._tools.database.acquire() as conn:
            queued = await db.queued_batches(conn)
        now_s = time.monotonic()
        self._tools.feed.queued = [Queued(now_s + q.left_seconds, q.num_left, q.work_per_line) for q in queued]

    async def _renew(self) -> None:
        working = list(self._working.values())
        if not working:
            return
        async with self._tools.database.acquire() as conn:
            kept = await db.renew_leases(conn, [work.batch for work in working])
        for work in working:
            if (work.batch.project_id, work.batch.id) not in kept:
                work.cancel()

    def _interval_s(self) -> float:
        """Return the seconds until the next poll, unless the dispatcher is woken before."""
        return POLL_S if self._working else self._idle_s

    async def _work_on(self, mine: _Work) -> None:
        batch = mine.batch
        pause: Pause | None = Pause(AGAIN_S)
        try:
            pause = await self._advance(mine)
        except BatchLost:
            pause = None
        except asyncio.CancelledError:
            pause = AT_ONCE
            raise
        except FAILURES as error:
            pause = Pause(POLL_S if isinstance(error, UNAVAILABLE) else AGAIN_S)  # the database may be back soon
            log.warning("batch_delayed", batch=batch.id, error=repr(error))
        except GatewayError as error:
            pause = Pause(AGAIN_S, wait_of(error))
            log.warning("batch_delayed", batch=batch.id, error=error.message)
        except Exception:
            log.exception("batch_delayed", batch=batch.id)
        finally:
            if self._working.get((batch.project_id, batch.id)) is mine:
                del self._working[batch.project_id, batch.id]
            if pause is not None:
                await self._release_batch(batch, pause)

    async def _release_batch(self, batch: LeasedBatch, pause: Pause) -> None:
        try:
            async with self._tools.database.acquire() as conn:
                await db.release_batch(conn, batch, after_seconds=pause.seconds, waits_for=pause.waits_for)
        except FAILURES as error:
            log.warning("batch_released_later", batch=batch.id, error=repr(error))

    async def _advance(self, work: _Work) -> Pause | None:
        """Do the next steps of a batch, as far as possible.

        Return the pause after which to go on; None if the batch has ended, or another gateway has it.
        """
        tools, batch = self._tools, work.batch
        parts = await tools.files.parts(batch.project_id, batch.input_file_id)
        reader = LineReader(tools.files.content, batch.project_id, parts)
        if batch.status == "validating":
            num_bytes = sum(part.num_bytes for part in parts)
            return await self._validate(batch, num_bytes)
        if batch.status == "cancelling":
            await end_batch(tools, batch, reader, "cancelled")
            return None
        ending = batch.ending
        if batch.status == "in_progress":
            principal = await self._principal(batch)
            if principal is None and batch.left_seconds > 0:
                return Pause(min(AGAIN_S, batch.left_seconds), NO_KEY)
            came: str | Pause = "expired"
            if principal is not None:
                async with tools.database.transaction() as conn:
                    if await db.lock_batch(conn, batch) != "in_progress":
                        return None
                    batch = await db.begin_anew(conn, batch)
                came = await RunningLines(tools, batch, principal, reader, work.must_rest).run()
            if isinstance(came, Pause):
                return came
            ending = came
            async with tools.database.transaction() as conn:
                if await db.lock_batch(conn, batch) != "in_progress":
                    return None
                await db.finalize_batch(conn, batch, ending)
            if not self._room("ending"):
                return AT_ONCE
            work.stage = "ending"
        await end_batch(tools, batch, reader, ending or "completed")
        return None

    async def _validate(self, batch: LeasedBatch, num_bytes: int) -> Pause | None:
        tools = self._tools
        pieces = tools.files.read(batch.project_id, batch.input_file_id)
        verdict: Verdict | None = TOO_LATE
        if batch.left_seconds > 0:
            verdict = await check_file(
                tools.database, batch, pieces, num_bytes=num_bytes, max_line_bytes=tools.max_line_bytes
            )
        if verdict is None:
            return None
        async with tools.database.transaction() as conn:
            if await db.lock_batch(conn, batch) != "validating":
                return None
            faults = verdict.errors
            if not faults:
                if not await db.begin_batch(conn, batch, verdict.num_lines):
                    log.warning("batch_checked_again", batch=batch.id)
                    return AT_ONCE
                over = await exceeded_enqueued(conn, batch.project_id)
                if over is None:
                    return AT_ONCE
                faults = [_too_many(*over)]
            place = place_of(batch.project_id, batch.id, "metadata")
            metadata = tools.cipher.seal(tools.cipher.open(Sealed(*await db.metadata_of(conn, batch)), place), place)
            errors = tools.cipher.seal(msgspec.json.encode(faults), place_of(batch.project_id, batch.id, "errors"))
            await db.fail_batch(conn, batch, errors.key_id, metadata.data, errors.data)
            await db.drop_lines(conn, batch)
            await db.announce_end(conn, batch)
        tools.metrics.ended("failed")
        return None

    async def _principal(self, batch: LeasedBatch) -> Principal | None:
        """Return the principal as which the lines run; None while the key or its project may not be used."""
        async with self._tools.database.acquire() as conn:
            key = await find_usable_key_by_id(conn, batch.project_id, batch.api_key_id)
        if key is None or key.suspended or "inference" not in key.scopes:
            return None
        return msgspec.structs.replace(principal_of(key), is_batch=True)


def gives_place(
    working: Sequence[_Work],
    standings: Mapping[str, ProjectBatches],
    now_s: float,
    *,
    is_urgent: bool = False,
    hopeless: Collection[str] = (),
) -> _Work | None:
    """Return the work that gives its place to a batch which waits; None where every place is held by right.

    The project with the most batches at work gives way, if a project with fewer waits: at once if it has two more, else
    after SLICE_S; it gives the batch that was worked on longest. is_urgent: deadlines are in danger, so that the batch
    that is due last gives way, and none does for one more. hopeless: ids of batches that will be late in any case; one
    gives way after SLICE_S to any batch of its project that waits.
    """
    waiting = [standing.num_at_work for standing in standings.values() if standing.num_due]
    working = [work for work in working if work.stage == "running"]
    if not waiting or any(work.must_rest.is_set() for work in working):
        return None
    lost = [work for work in working if work.batch.id in hopeless and now_s - work.began_s >= SLICE_S]
    if lost := [work for work in lost if standings.get(work.batch.project_id, NONE).num_due]:
        return min(lost, key=lambda work: work.began_s)
    of_project = {work.batch.project_id for work in working}
    counts = {project: standings[project].num_at_work for project in of_project if project in standings}
    if not counts or max(counts.values()) <= min(waiting):
        return None
    most = max(counts.values())
    theirs = [work for work in working if counts.get(work.batch.project_id) == most]
    if is_urgent:
        return max(theirs, key=lambda work: work.batch.expires_at) if most > min(waiting) + 1 else None
    work = min(theirs, key=lambda work: work.began_s)
    return work if most > min(waiting) + 1 or now_s - work.began_s >= SLICE_S else None


def _too_many(limit: Limit, num_tokens: int) -> BatchError:
    """Return the error of a batch whose tokens exceed what a limit of enqueued tokens leaves."""
    whose = "Your organization" if limit.project_id is None else "This project"
    which = "" if limit.model is None else f" for the model '{limit.model}'"
    return BatchError(
        "token_limit_exceeded",
        f"{whose} may have {limit.max} tokens of batches enqueued{which}, and would have {num_tokens} with this batch. "
        "Begin it again when others have run.",
    )
