"""Keeps this gateway's leases in PostgreSQL: asks for further amounts, refills slices, returns them, stays known.

One worker speaks with PostgreSQL about leases: all requests that wait meanwhile travel together in the next exchange.
The transaction that writes the ledger settles the used amounts, under the same lock. Knows neither callers nor SQL.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager

import msgspec
import structlog

from gateway.domain.limits.clock import DatabaseClock
from gateway.domain.limits.exchange import Exchange, StaleRequest, WaitingRequest, begin_reservation, grant_waiting
from gateway.domain.limits.holdings import Holdings, Row
from gateway.domain.limits.limit import Limit
from gateway.domain.limits.slices import Key, Reservation, Shortage
from gateway.domain.limits.store import Beat, LeaseStore, SessionLost
from gateway.domain.limits.work import RequestWork
from gateway.support.worker import Worker, stop_all

log = structlog.get_logger(__name__)

TICK_S = 0.25
BEAT_S = 1.0
CLEAN_UP_BEATS = 600
SILENT_S = 15.0
"""Seconds without an answer of PostgreSQL after which nothing is reserved from slices any more.

Other gateways count this one as gone only after that.
"""

EXCHANGE_TIMEOUT_S = 5.0
ASK_TIMEOUT_S = 2 * EXCHANGE_TIMEOUT_S
"""The most seconds that a request waits: for the exchange that is under way, and for the request's own."""

SHORT_S = 0.1
"""Seconds for which requests are refused after a shortage without asking PostgreSQL again.

A client that retries in a loop so causes hardly any queries.
"""


class LeaseChanges(msgspec.Struct, frozen=True):
    """The changes of leases that the transaction which writes usage has to make as well."""

    gateway_id: str
    amounts: Mapping[Key, int]
    """The change of the leased amount, by limit and window."""


class Keeper:
    """The leases of one gateway, maintained between `start` and `stop`.

    on_beat: called with the number of gateways at each sign of life that this gateway gives.
    """

    def __init__(self, store: LeaseStore, clock: DatabaseClock, on_beat: Callable[[int], None]) -> None:
        self.holdings = Holdings()
        self.failures = store.failures
        self._store = store
        self._clock = clock
        self._on_beat = on_beat
        self._gateway_id = _new_gateway_id()
        self._answered_s = float("-inf")
        self._lock = asyncio.Lock()  # held by every change of a lease, and of `held` with it
        self._wake = asyncio.Event()
        self._waiting: list[tuple[WaitingRequest, asyncio.Future[None]]] = []
        self._ticked_s = 0.0
        self._num_beats = 0
        self._workers = (
            Worker(self._exchange_waiting, self._rest_s, name="leases", wake=self._wake, rests_first=True),
            Worker(self._beat, BEAT_S, name="leases' signs of life", rests_first=True),
        )

    async def start(self) -> None:
        """Claim the leases of this gateway and start the worker.

        Raises as `LeaseStore.beat`, or one of `gateway.db.pool.FAILURES`: without PostgreSQL's time nothing can start.
        """
        await self._claim()
        self._ticked_s = self._clock.monotonic()
        for worker in self._workers:
            worker.start()

    async def stop(self) -> None:
        """Return all leased amounts that no unwritten usage needs."""
        await stop_all(*self._workers)
        self._answer_waiting(self._waiting)
        self.holdings.forget_free()
        with contextlib.suppress(SessionLost, *self.failures):
            async with asyncio.timeout(EXCHANGE_TIMEOUT_S):
                if self.holdings.amounts():
                    await self._exchange([])
                else:
                    await self._store.leave(self._gateway_id)

    def reserve(self, limits: tuple[Limit, ...], work: RequestWork) -> Reservation | Shortage | None:
        """Reserve the amounts of a request without I/O.

        Return the reservation, or the shortage that is known already; None: `ask` has to be called.
        """
        now_s, instant_ns = self._clock.monotonic(), self._clock.now_ns()
        if now_s - self._answered_s > SILENT_S:
            return None
        entries = self.holdings.entries(limits, instant_ns)
        reservation = self.holdings.reserve(entries, work, instant_ns, now_s)
        if reservation is None:
            return self.holdings.known_shortage(entries, work, instant_ns, now_s - SHORT_S)
        if self.holdings.is_urgent:
            self._wake.set()
        return reservation

    async def ask(self, limits: tuple[Limit, ...], work: RequestWork) -> Reservation | Shortage | StaleRequest | None:
        """Have PostgreSQL decide about a request, together with all others that wait; return the decision.

        Return None if PostgreSQL does not answer in time.
        """
        now_s, instant_ns = self._clock.monotonic(), self._clock.now_ns()
        asked = begin_reservation(self.holdings.entries(limits, instant_ns), work, instant_ns, now_s)
        answered = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, answered))
        self._wake.set()
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                await answered
        except TimeoutError:
            return None
        except asyncio.CancelledError:
            if isinstance(asked.answer, Reservation):  # in the very moment that the client left
                self.close(asked.answer)
            raise
        if isinstance(asked.answer, Shortage):
            self.holdings.note_shortage(asked.entries, asked.answer, self._clock.monotonic())
        return asked.answer

    def close(self, reservation: Reservation) -> None:
        """End a reservation, so that its unused rest can be returned."""
        self.holdings.close(reservation)
        self.wake_for_spare()

    def wake_for_spare(self) -> None:
        """Wake the worker if a slice holds more than it needs."""
        if self.holdings.overfull:
            self._wake.set()

    @asynccontextmanager
    async def settling(self, rows: Collection[Row]) -> AsyncIterator[LeaseChanges]:
        """Give the lease changes that the transaction which writes these rows to the ledger has to make.

        The caller runs the transaction within the context. If the context is left by an exception, it is unknown
        whether the transaction was committed, and the next exchange writes these leases again.
        """
        if not self.holdings.awaits(rows):
            yield LeaseChanges("", {})
            return
        async with self._lock:
            amounts = self.holdings.writing(rows)
            try:
                yield LeaseChanges(self._gateway_id, amounts)
            except BaseException:
                self.holdings.dirty |= amounts.keys()
                raise
            self.holdings.written(rows)

    def _rest_s(self) -> float:
        return TICK_S if self.holdings.slices else math.inf  # without slices there is no pace to measure

    async def _exchange_waiting(self) -> None:
        """Have one exchange with PostgreSQL decide about all requests that wait.

        Requests get no decision if the exchange fails; the next exchange mends the leases.
        """
        now_s = self._clock.monotonic()
        if now_s - self._ticked_s >= TICK_S:
            self.holdings.tick(now_s, now_s - self._ticked_s, self._clock.now_ns())
            self._ticked_s = now_s
        waiting = self._left_waiting(now_s)
        try:
            await self._exchange([asked for asked, _ in waiting])
        except SessionLost:
            self._answered_s = float("-inf")  # `_beat` claims the leases in use
        except self.failures as error:
            log.warning("leases_unavailable", error=repr(error))
        finally:
            self._answer_waiting(waiting)

    def _left_waiting(self, now_s: float) -> list[tuple[WaitingRequest, asyncio.Future[None]]]:
        """Return the waiting requests that the last exchange could not serve, and answer the others."""
        is_known = now_s - self._answered_s <= SILENT_S
        filled: list[tuple[WaitingRequest, asyncio.Future[None]]] = []
        rest: list[tuple[WaitingRequest, asyncio.Future[None]]] = []
        for each in self._waiting:
            (filled if is_known and grant_waiting(self.holdings, each[0]) else rest).append(each)
        self._waiting = []
        self._answer_waiting(filled)
        return rest

    async def _exchange(self, asks: list[WaitingRequest]) -> None:
        async with self._lock:
            exchange = Exchange(self.holdings, asks)
            if exchange.is_empty:
                return
            try:
                async with asyncio.timeout(EXCHANGE_TIMEOUT_S):
                    await self._store.exchange(self._gateway_id, exchange.limit_ids, exchange.decide)
            except BaseException:
                exchange.failed()
                raise
            exchange.committed()

    def _answer_waiting(self, waiting: list[tuple[WaitingRequest, asyncio.Future[None]]]) -> None:
        for asked, answered in waiting:
            if not answered.done():
                answered.set_result(None)
            elif isinstance(asked.answer, Reservation):  # nobody waits for it any more
                self.close(asked.answer)

    async def _beat(self) -> None:
        self._num_beats += 1
        sent_s = self._clock.monotonic()
        try:
            async with asyncio.timeout(EXCHANGE_TIMEOUT_S):
                self._note_beat(await self._store.beat(self._gateway_id), sent_s)
                if self._num_beats % CLEAN_UP_BEATS == 0:
                    await self._store.clean_up()
        except SessionLost:
            log.warning("leases_lost")
            with contextlib.suppress(*self.failures):
                await self._claim()
        except self.failures as error:
            log.warning("leases_unavailable", error=repr(error))

    async def _claim(self) -> None:
        """Register this gateway again under another name, and keep the leases that are in use."""
        async with self._lock:
            sent_s = self._clock.monotonic()
            self._gateway_id = _new_gateway_id()
            self.holdings.reclaim()
            async with asyncio.timeout(EXCHANGE_TIMEOUT_S):
                beat = await self._store.claim(self._gateway_id, self.holdings.amounts())
            self._note_beat(beat, sent_s)

    def _note_beat(self, beat: Beat, sent_s: float) -> None:
        self._answered_s = sent_s
        self._clock.set(beat.now_ns)
        self._on_beat(beat.num_gateways)


def _new_gateway_id() -> str:
    return secrets.token_hex(16)
