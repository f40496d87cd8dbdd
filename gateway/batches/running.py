"""Runs the lines of one batch: begins them as engines want more, and stores their results with the batch's counts."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import structlog

from gateway.batches.feed import Asker, Place, base_of, work_of
from gateway.batches.lines import LineReader
from gateway.batches.output import line_id, read_line, reason_of, reply_line
from gateway.batches.runner import LineReply
from gateway.batches.service import result_place
from gateway.batches.services import BatchServices
from gateway.db.batches import work as db
from gateway.db.batches.work import LeasedBatch, LineResult, LineRow, ReturnedLine
from gateway.db.pool import FAILURES
from gateway.domain.batches.line import BatchLine, BatchWait, request_id_of
from gateway.domain.errors import FileUnavailable, GatewayError, LimitReached, NoReplicaYet, Overloaded, ShuttingDown
from gateway.domain.tenancy.principal import Principal
from gateway.http.error_body import body_of, unexpected_error

if TYPE_CHECKING:
    from gateway.db.pool import Connection

log = structlog.get_logger(__name__)

CLAIM_LINES = 64
MAX_CLAIMED = 4 * CLAIM_LINES
"""The most claimed lines that wait for engines without credit, while lines of other base models run."""

MAX_FAULTS = 3
"""The number of times that a line is begun and fails by a fault of ours before the fault is its result."""

MAX_ATTEMPTS = 6
"""The number of attempts of a line after which an engine's refusal for want of room is the line's result.

The batch rests after each, and twice as long each time: half a minute in all. Each attempt adds rows to the ledger.
"""

MAX_WAITING = 16
"""The lines of all batches that wait for their turn to begin or to end, from which on no further one takes a place.
Engines count lines only once they have them, and would ask for more in place of those that wait."""

LAST_TURN_S = 1.0
"""The most seconds that lines which their engines have completed get to end before a batch is left."""

TICK_S = 0.05
STORE_EVERY_S = 0.25
MAX_REST_S = 60.0
REST_S = 5.0
AWAY_S = 0.5
"""Seconds between two tries while the database is away."""


class Pause(msgspec.Struct, frozen=True):
    """The result that no line of the batch can run for some seconds."""

    seconds: float
    waits_for: BatchWait | None = None
    """The reason why no line can run; None where the batch only gives its place to others, or begins anew."""


def wait_of(error: GatewayError) -> BatchWait:
    """Return the reason why a batch waits, whose lines cannot run while they get this error."""
    return BatchWait(error.code or error.type, error.message)


class BatchLost(Exception):
    """The error when another gateway works on the batch by now, or it was cancelled."""


class RunningLines:
    """The lines of one batch that run in this gateway."""

    def __init__(
        self,
        tools: BatchServices,
        batch: LeasedBatch,
        principal: Principal,
        reader: LineReader,
        must_rest: asyncio.Event,
    ) -> None:
        """Prepare to run a batch's lines. must_rest: once it is set, no more lines begin and the batch rests."""
        self._tools = tools
        self._must_rest = must_rest
        self._batch = batch
        self._principal = principal
        self._reader = reader
        self._claimed: deque[LineRow] = deque()
        self._alone: set[frozenset[str]] = set()  # sets of base models beside which the batch has no waiting line
        self._running: dict[asyncio.Task[float | None], tuple[str, BatchLine]] = {}
        self._results: list[LineResult] = []
        self._given_back: list[ReturnedLine] = []
        self._rest: Pause | None = None
        self._is_exhausted = False
        self._ends_at_s = time.monotonic() + batch.left_seconds
        self._stored_at_s = time.monotonic()
        self._asker = Asker(batch.project_id, self._ends_at_s, dict(batch.open_lines), batch.id)

    async def run(self) -> str | Pause:
        """Run the lines of a batch until all have results, and return "completed".

        Return "expired" once the batch's time is over, and a `Pause` once the batch has to wait for something else.

        Raises BatchLost: when another gateway has the batch.
        Raises one of `gateway.db.pool.FAILURES`: when the database fails.
        """
        try:
            while True:
                if time.monotonic() >= self._ends_at_s:
                    return "expired"
                await self._begin_lines()
                if self._running:
                    await asyncio.wait(self._running, timeout=TICK_S, return_when=asyncio.FIRST_COMPLETED)
                elif self._claimed:
                    await asyncio.sleep(TICK_S)  # the engines want no more yet
                is_idle = not self._running and (not self._claimed or self._rest is not None)
                if is_idle or time.monotonic() - self._stored_at_s >= STORE_EVERY_S:
                    try:
                        await self._store(give_back=is_idle)
                    except FAILURES as error:
                        await self._wait_for_database(error)
                        continue
                if is_idle and self._rest is not None:
                    return self._rest
                if is_idle and self._is_exhausted:
                    if not (num_open := await self._num_open()):
                        return "completed"
                    log.warning("batch_lines_left", batch=self._batch.id, number=num_open)
                    return Pause(REST_S)  # nobody runs them: all begin anew with the next lease
        finally:
            await self._end()

    async def _begin_lines(self) -> None:
        if self._must_rest.is_set() and self._rest is None:
            self._rest = Pause(0.0)
        if self._rest is not None:
            self._tools.feed.leave(self._asker)
            return
        try:
            await self._claim()
        except FAILURES as error:  # whether lines were claimed is not known: all that are begin anew after the rest
            await self._wait_for_database(error)
            return
        full = set[str]()  # base models without a place for a line now
        for _ in range(len(self._claimed)):
            line = self._claimed.popleft()
            base = base_of(line.model)
            may_begin = self._tools.turns.num_waiting < MAX_WAITING
            place = None if base in full else self._tools.feed.take(line.model, self._asker, may_begin=may_begin)
            if place is None:
                full.add(base)
                self._claimed.append(line)
                continue
            terms = BatchLine(
                begun=line.attempt - 1,
                instant_ns=int(line.begun_at.timestamp() * 1e6) * 1000,
                slack_s=0.0 if place.is_urgent else None,
                batch_id=self._batch.id,
            )
            request_id = request_id_of(self._batch.id, line.number)
            task = asyncio.create_task(self._run_line(line, request_id, terms))
            self._running[task] = (request_id, terms)
            task.add_done_callback(partial(self._line_ended, place))

    async def _claim(self) -> None:
        """Claim lines before the last ones have begun: only a batch with a waiting line gets a share of the places.

        If the engines of some base models want no batch work now, claim lines for others.
        """
        waiting: frozenset[str] = frozenset()
        if len(self._claimed) >= CLAIM_LINES // 2:
            waiting = frozenset(base_of(line.model) for line in self._claimed)
        if self._is_exhausted or waiting in self._alone or len(self._claimed) >= MAX_CLAIMED:
            return
        async with self._tools.database.transaction() as conn:
            if await db.lock_batch(conn, self._batch) != "in_progress":
                raise BatchLost
            found = await db.claim_lines(conn, self._batch, CLAIM_LINES, but_for=waiting)
        self._claimed.extend(found)
        if not found and waiting:
            self._alone.add(waiting)
        elif not found:
            self._is_exhausted = True

    async def _wait_for_database(self, error: Exception) -> None:
        """Begin no more lines until the database answers; results of running lines are kept until then."""
        log.warning("batch_delayed", batch=self._batch.id, error=repr(error))
        self._rest = self._rest or Pause(0.0)
        await asyncio.sleep(AWAY_S)

    def _line_ended(self, place: Place, task: asyncio.Task[float | None]) -> None:
        del self._running[task]
        self._tools.feed.give(place, None if task.cancelled() or task.exception() else task.result())

    async def _run_line(self, line: LineRow, request_id: str, terms: BatchLine) -> float | None:
        """Run a line. Return its work; None where it is given back."""
        batch = self._batch
        custom_id = ""
        try:
            await self._tools.turns.turn()
            if self._rest is not None:  # since the line got its place
                self._given_back.append(ReturnedLine(line.number, line.attempt))
                return None
            custom_id, body = read_line(await self._reader.read(line.first_byte, line.num_bytes))
            reply = await self._tools.runner.run(self._principal, batch.endpoint, body, request_id, terms)
        except (LimitReached, NoReplicaYet) as error:  # nothing was sent, so that this is no failure of the line
            self._rest = Pause(min(error.retry_after_s or REST_S, MAX_REST_S), wait_of(error))
            self._given_back.append(ReturnedLine(line.number, line.attempt))
            return None
        except (ShuttingDown, FileUnavailable) as error:
            self._rest = Pause(REST_S, wait_of(error))
            self._given_back.append(ReturnedLine(line.number, line.attempt, was_sent=True, is_fault=True))
            return None
        except GatewayError as error:
            # An engine that dies over a line, or ends, has another code than one without room.
            is_fault = not (isinstance(error, Overloaded) and error.code == Overloaded.code)
            is_last = line.num_faults + 1 >= MAX_FAULTS if is_fault else line.attempt >= MAX_ATTEMPTS
            if error.status >= 500 and not is_last:
                if isinstance(error, Overloaded):
                    factor = 1 if is_fault else 2 ** (line.attempt - 1)
                    self._rest = Pause(min(factor * (error.retry_after_s or 1.0), MAX_REST_S), wait_of(error))
                self._given_back.append(ReturnedLine(line.number, line.attempt, was_sent=True, is_fault=is_fault))
                return None
            reply = LineReply(status=error.status, body=msgspec.json.encode(body_of(error)))
        except Exception:
            log.exception("batch_line_failed", batch=batch.id, number=line.number)
            reply = LineReply(status=500, body=msgspec.json.encode(body_of(unexpected_error(request_id))))
        text = reply_line(line_id(batch.id, line.number), custom_id, request_id, reply.status, reply.body)
        sealed = self._tools.cipher.seal(text, result_place(batch.project_id, batch.id, line.number))
        work = work_of(reply.input_tokens, reply.output_tokens)
        self._asker.done(line.model, work)
        self._results.append(
            LineResult(
                number=line.number,
                attempt=line.attempt,
                is_completed=reply.status < 400,
                reason=reason_of(reply.status, reply.body),
                content_key=sealed.key_id,
                sealed_result=sealed.data,
                input_tokens=reply.input_tokens,
                cached_tokens=reply.cached_tokens,
                output_tokens=reply.output_tokens,
            )
        )
        return work

    async def _store(self, *, give_back: bool) -> None:
        """Store the results that came. give_back: unclaim the lines that did not run."""
        self._stored_at_s = time.monotonic()
        results, given_back = self._results, self._given_back
        self._results, self._given_back = [], []
        if give_back:
            given_back += [ReturnedLine(line.number, line.attempt) for line in self._claimed]
            self._claimed.clear()
        if not results and not given_back:
            return
        try:
            async with self._tools.database.transaction() as conn:
                if await db.lock_batch(conn, self._batch) is None:
                    raise BatchLost
                if results:
                    await db.store_results(conn, self._batch, results)
                    await self._disown_failed(conn, results)
                if given_back:
                    await db.give_lines_back(conn, self._batch, given_back)
        except FAILURES:  # both may be stored again, whether or not the database has them
            self._results = results + self._results
            self._given_back = given_back + self._given_back
            raise
        if given_back:
            self._is_exhausted = False
            self._alone.clear()
        num_completed = sum(result.is_completed for result in results)
        counts = (num_completed, len(results) - num_completed, sum(line.was_sent for line in given_back))
        for outcome, number in zip(("completed", "failed", "begun_again"), counts, strict=True):
            self._tools.metrics.lines(outcome, number)

    async def _disown_failed(self, conn: Connection, results: Sequence[LineResult]) -> None:
        """Ensure that nobody is billed for lines that failed and had been begun before.

        A line that is refused on its way to an engine supersedes none of its earlier attempts.
        """
        numbers = [each.number for each in results if each.attempt > 1 and not each.is_completed]
        if numbers:
            ids = [request_id_of(self._batch.id, number) for number in numbers]
            await db.disown_failed(conn, self._batch, numbers, ids)

    async def _num_open(self) -> int:
        async with self._tools.database.acquire() as conn:
            return await db.num_open_lines(conn, self._batch)

    async def _end(self) -> None:
        """Abort the lines that still run, which nobody is billed for, and store the results that are there.

        Lines that their engines have completed by now end before.
        """
        self._tools.feed.leave(self._asker)
        if self._running:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_TURN_S):
                    await self._tools.turns.turn()
        running = dict(self._running)
        for task, (request_id, terms) in running.items():
            if not task.done():  # else its result is there, and is billed
                self._tools.runner.disown(request_id, terms)
                task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        if self._results or self._given_back or self._claimed:
            try:
                await self._store(give_back=True)
            except BatchLost:
                return
