"""Admits requests within their limits, usually without I/O, and keeps this gateway's leases in PostgreSQL.

One worker speaks with PostgreSQL about leases: whatever waits meanwhile travels together in the next exchange. What
requests used is settled by the transaction that writes the ledger, under the same lock. Knows neither HTTP nor SQL.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Protocol

import msgspec
import structlog

from engine.protocol import Usage
from gateway.errors import LimitReached, Overloaded
from gateway.limits.clock import DatabaseClock
from gateway.limits.crowd import Crowd
from gateway.limits.exchange import Ask, Exchange, Snapshot, Stale, ask
from gateway.limits.holdings import Hold, Holdings, Key, Shortage
from gateway.limits.limit import Limit
from gateway.limits.refusal import Headers, refusal, standing
from gateway.limits.rules import Applicable, Rules
from gateway.limits.work import Part, Prices, Work
from gateway.principal import Principal
from gateway.requests import MAX_PROMPTS_AT_ONCE

log = structlog.get_logger(__name__)

TICK_S = 0.25
BEAT_S = 1.0
CLEAN_UP_BEATS = 600
SILENT_S = 15.0
"""Without an answer of PostgreSQL for this long, nothing is reserved from slices any more: less than the time after
which others take a gateway for dead."""

EXCHANGE_TIMEOUT_S = 5.0
SHORT_S = 0.1
"""For so long a shortage is believed without asking again, so that a client in a loop costs next to nothing."""

CONCURRENCY_WAITS_S = (0.01, 0.03, 0.06, 0.1)
"""A place that was freed on another gateway a moment ago may not be back yet."""

MAX_STALE = 4


class SessionLost(Exception):
    """PostgreSQL has forgotten this gateway, and its leases with it."""


class Beat(msgspec.Struct, frozen=True):
    now_ns: int
    num_gateways: int


class LeaseStore(Protocol):
    """PostgreSQL as leases see it. Every method is one transaction and raises one of `failures` where it fails."""

    failures: tuple[type[Exception], ...]

    async def exchange(
        self, gateway_id: str, limit_ids: Collection[str], decide: Callable[[Snapshot | None], Mapping[Key, int]]
    ) -> None:
        """Lock these limits, read them, and write the leases that `decide` says. Raises SessionLost."""

    async def beat(self, gateway_id: str) -> Beat:
        """Stay known; forget gateways that are not heard of. Raises SessionLost."""

    async def claim(self, gateway_id: str, amounts: Mapping[Key, int]) -> Beat:
        """Become known, with leases for what is in use already, whatever that leaves for others."""

    async def clean_up(self) -> None:
        """Forget the accounts of windows that are long over."""

    async def leave(self, gateway_id: str) -> None:
        """Be forgotten, with all leases."""


class Admission(msgspec.Struct, frozen=True):
    """A request that may run, with completions of at most cap tokens, as of instant_ns. `close` ends it, whatever
    became of it; what the engine was given of it settles by itself."""

    cap: int
    instant_ns: int
    headers: Headers
    close: Callable[[], None]


class Settling(msgspec.Struct, frozen=True):
    """What the transaction that writes usage has to write of leases too."""

    gateway_id: str
    amounts: Mapping[Key, int]


class Limiter:
    """One per gateway process; works between `start` and `stop`."""

    def __init__(self, store: LeaseStore, rules: Rules, clock: DatabaseClock, prices: Prices) -> None:
        self.clock = clock
        self.crowd = Crowd()
        self._store = store
        self._rules = rules
        self._prices = prices
        self._holdings = Holdings()
        self._gateway_id = _new_gateway_id()
        self._heard_s = float("-inf")
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()
        self._waiting: list[tuple[Ask, asyncio.Future[None]]] = []
        self._ticked_s = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Raises what the store raises: without PostgreSQL's time nothing can start."""
        await self._claim()
        self._ticked_s = self.clock.monotonic()
        self._tasks = [asyncio.create_task(self._work()), asyncio.create_task(self._beat())]

    async def stop(self) -> None:
        """Give everything back that no unwritten usage needs."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._answer(self._waiting)
        self._holdings.forget_free()
        with contextlib.suppress(SessionLost, *self._store.failures):
            async with asyncio.timeout(EXCHANGE_TIMEOUT_S):
                if self._holdings.amounts():
                    await self._exchange([])
                else:
                    await self._store.leave(self._gateway_id)

    def limit_changed(self, limit_id: str | None) -> None:
        """None: any may have changed."""
        self._holdings.forget_free(limit_id)
        self._wake.set()

    async def rules(self, principal: Principal, model: str) -> Applicable:
        """What applies to a caller. Raises Overloaded when the database cannot be asked."""
        try:
            return await self._rules.of(principal, model)
        except self._store.failures:
            raise _unavailable() from None

    async def admit(
        self, principal: Principal, model: str, parts: tuple[Part, ...], *, min_tokens: int, capacity: int
    ) -> Admission:
        """Reserve for all parts of a request. capacity: completions that the engine takes at once.

        Raises LimitReached, with the limit and its standing, and Overloaded.
        """
        tenant, num_completions = principal.project_id, sum(part.num_choices for part in parts[:MAX_PROMPTS_AT_ONCE])
        if not self.crowd.enter(tenant, num_completions, capacity):
            raise LimitReached("Too many requests of this project are running and waiting at once.", retry_after_s=1.0)
        try:
            applicable = await self.rules(principal, model)
            if not applicable.reserving:
                return Admission(
                    max(part.max_tokens for part in parts),
                    self.clock.now_ns(),
                    (),
                    _Closing(self, None, tenant, num_completions),
                )
            work = Work(parts, self._prices.of(principal.organization_id, model), max(1, min_tokens))
            hold = await self._reserve(principal, model, work)
        except BaseException:
            self.crowd.leave(tenant, num_completions)
            raise
        headers = standing(hold.entries, hold.instant_ns)
        return Admission(hold.cap, hold.instant_ns, headers, _Closing(self, hold, tenant, num_completions))

    def close(self, hold: Hold | None, tenant: str, num_completions: int) -> None:
        """The request is answered."""
        self.crowd.leave(tenant, num_completions)
        if hold is not None:
            self._holdings.close(hold)
            self._wake_if_needed()

    # what the meter tells

    def dispatched(self, request_id: str) -> None:
        """The engine has it: `ended` will come."""
        self._holdings.dispatched(request_id)

    def ended(self, request_id: str, usage: Usage) -> None:
        """It used this much, which has yet to be written."""
        self._holdings.ended(request_id, usage)
        self._wake_if_needed()

    @asynccontextmanager
    async def settling(self, request_ids: Collection[str]) -> AsyncIterator[Settling]:
        """Around the transaction that writes the usage of these requests. It is over when the context is left without
        an exception; otherwise its end is unknown."""
        if not self._holdings.awaits(request_ids):
            yield Settling("", {})
            return
        async with self._lock:
            amounts = self._holdings.writing(request_ids)
            try:
                yield Settling(self._gateway_id, amounts)
            except BaseException:
                self._holdings.dirty |= amounts.keys()
                raise
            self._holdings.written(request_ids)

    # how requests reserve

    async def _reserve(self, principal: Principal, model: str, work: Work) -> Hold:
        """Raises LimitReached and Overloaded."""
        waits_s = iter(CONCURRENCY_WAITS_S)
        num_stale = 0
        while True:
            limits = (await self.rules(principal, model)).reserving
            answer = self._at_once(limits, work) or await self._ask(limits, work)
            if isinstance(answer, Hold):
                return answer
            if isinstance(answer, Stale):
                num_stale += 1
                if num_stale > MAX_STALE:
                    raise _unavailable()
                self._rules.forget(principal.project_id)
                continue
            wait_s = next(waits_s, None) if answer.limit.unit == "concurrency" else None
            if wait_s is None:
                entries = self._holdings.entries(limits, self.clock.now_ns())
                raise refusal(answer, standing(entries, answer.now_ns))
            await asyncio.sleep(wait_s)

    def _at_once(self, limits: tuple[Limit, ...], work: Work) -> Hold | Shortage | None:
        """What can be said without I/O."""
        now_s, instant_ns = self.clock.monotonic(), self.clock.now_ns()
        if now_s - self._heard_s > SILENT_S:
            return None
        entries = self._holdings.entries(limits, instant_ns)
        hold = self._holdings.reserve(entries, work, instant_ns, now_s)
        if hold is None:
            return self._holdings.known_shortage(entries, work, instant_ns, now_s - SHORT_S)
        if self._holdings.thirsty:
            self._wake.set()
        return hold

    async def _ask(self, limits: tuple[Limit, ...], work: Work) -> Hold | Shortage | Stale:
        """Ask PostgreSQL for this request, together with whoever else waits. Raises Overloaded."""
        now_s, instant_ns = self.clock.monotonic(), self.clock.now_ns()
        asked = ask(self._holdings.entries(limits, instant_ns), work, instant_ns, now_s)
        answered = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, answered))
        self._wake.set()
        try:
            await answered
        except asyncio.CancelledError:
            if isinstance(asked.answer, Hold):  # in the very moment that the client left
                self._holdings.close(asked.answer)
            raise
        if asked.answer is None:
            raise _unavailable()
        if isinstance(asked.answer, Shortage):
            self._holdings.note_shortage(asked.entries, asked.answer, self.clock.monotonic())
        return asked.answer

    # how leases are kept

    async def _work(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._wake.wait()
            self._wake.clear()
            now_s = self.clock.monotonic()
            if now_s - self._ticked_s >= TICK_S:
                self._holdings.tick(now_s, now_s - self._ticked_s, self.clock.now_ns())
                self._ticked_s = now_s
            waiting, self._waiting = self._waiting, []
            try:
                await self._exchange([asked for asked, _ in waiting])
            except SessionLost:
                self._heard_s = float("-inf")  # `_beat` claims what is in use
            except self._store.failures as error:
                log.warning("leases_unavailable", error=repr(error))
            except Exception:
                log.exception("leases_failed")  # those who wait are told; the next exchange mends the rest
            finally:
                self._answer(waiting)

    async def _exchange(self, asks: list[Ask]) -> None:
        async with self._lock:
            exchange = Exchange(self._holdings, asks)
            if exchange.is_empty:
                return
            try:
                async with asyncio.timeout(EXCHANGE_TIMEOUT_S):
                    await self._store.exchange(self._gateway_id, exchange.limit_ids, exchange.decide)
            except BaseException:
                exchange.failed()
                raise
            exchange.committed()

    def _answer(self, waiting: list[tuple[Ask, asyncio.Future[None]]]) -> None:
        for asked, answered in waiting:
            if not answered.done():
                answered.set_result(None)
            elif isinstance(asked.answer, Hold):  # nobody waits for it any more
                self._holdings.close(asked.answer)

    async def _beat(self) -> None:
        for number in itertools.count(1):
            await asyncio.sleep(BEAT_S)
            sent_s = self.clock.monotonic()
            try:
                async with asyncio.timeout(EXCHANGE_TIMEOUT_S):
                    self._heard(await self._store.beat(self._gateway_id), sent_s)
                    if number % CLEAN_UP_BEATS == 0:
                        await self._store.clean_up()
            except SessionLost:
                log.warning("leases_lost")
                with contextlib.suppress(*self._store.failures):
                    await self._claim()
            except self._store.failures as error:
                log.warning("leases_unavailable", error=repr(error))

    async def _claim(self) -> None:
        """Begin anew, under another name, with what is in use."""
        async with self._lock:
            sent_s = self.clock.monotonic()
            self._gateway_id = _new_gateway_id()
            self._holdings.reclaim()
            beat = await self._store.claim(self._gateway_id, self._holdings.amounts())
            self._heard(beat, sent_s)

    def _heard(self, beat: Beat, sent_s: float) -> None:
        self._heard_s = sent_s
        self.clock.set(beat.now_ns)
        self.crowd.num_gateways = max(1, beat.num_gateways)

    def _wake_if_needed(self) -> None:
        if self._holdings.overfull:
            self._wake.set()


class _Closing:
    """Closes an admission once."""

    __slots__ = ("_hold", "_limiter", "_num_completions", "_tenant")

    def __init__(self, limiter: Limiter, hold: Hold | None, tenant: str, num_completions: int) -> None:
        self._limiter: Limiter | None = limiter
        self._hold = hold
        self._tenant = tenant
        self._num_completions = num_completions

    def __call__(self) -> None:
        limiter, self._limiter = self._limiter, None
        if limiter is not None:
            limiter.close(self._hold, self._tenant, self._num_completions)


def _new_gateway_id() -> str:
    return secrets.token_hex(16)


def _unavailable() -> Overloaded:
    return Overloaded("The limits of this project cannot be checked at the moment.", retry_after_s=1.0)
