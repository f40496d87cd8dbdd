"""Admits requests within the limits of their senders, usually without I/O. Knows neither HTTP nor SQL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager
from functools import partial

import msgspec

from engine.protocol import Usage
from gateway.domain.errors import LimitReached, Overloaded
from gateway.domain.limits.clock import DatabaseClock
from gateway.domain.limits.exchange import StaleRequest
from gateway.domain.limits.holdings import Row
from gateway.domain.limits.queue_share import QueueShare
from gateway.domain.limits.refusal import Headers, rate_limit_headers, refusal
from gateway.domain.limits.slices import Reservation
from gateway.domain.limits.store import LeaseStore
from gateway.domain.limits.work import MAX_PROMPTS_AT_ONCE, Price, Prices, PromptWork, RequestWork
from gateway.domain.tenancy.principal import Principal
from gateway.limits.keeper import Keeper, LeaseChanges
from gateway.limits.rules import Applicable, Rules

CONCURRENCY_WAITS_S = (0.01, 0.03, 0.06, 0.1)
"""Seconds before each further try of a request that waits for a place.

This gateway may learn only a moment later of a place that was freed on another one.
"""

FREE = Price()
"""The price, zero, of requests that are not charged."""

MAX_STALE = 4
RETRY_AFTER_S = 1.0


class Admission(msgspec.Struct, frozen=True):
    """An admitted request."""

    cap: int
    """The most tokens of each completion."""
    instant_ns: int
    """PostgreSQL's time at which the request was admitted, in Unix nanoseconds."""
    headers: Headers
    """The headers of the reply, which tell what is left of the limits."""
    close: Callable[[], None]
    """The function that gives the unused rest of the reservation back."""


class Limiter:
    """The limits of one gateway process, which work between `start` and `stop`."""

    def __init__(self, store: LeaseStore, rules: Rules, clock: DatabaseClock, prices: Prices) -> None:
        self.clock = clock
        self._queue_share = QueueShare()
        self._keeper = Keeper(store, clock, self._queue_share.share_among)
        self._rules = rules
        self._prices = prices

    async def start(self) -> None:
        """Claim this gateway's leases, and begin to maintain them.

        Raises as `Keeper.start`.
        """
        await self._keeper.start()

    async def stop(self) -> None:
        """Return all leased amounts that no unwritten usage needs."""
        await self._keeper.stop()

    def limit_changed(self, limit_id: str | None) -> None:
        """Stop reserving from slices that predate a change of this limit; None stands for all limits."""
        self._keeper.holdings.forget_free(limit_id)
        self._keeper.wake_for_spare()

    async def rules(self, principal: Principal, model: str) -> Applicable:
        """Return the limits that apply to a caller and a model.

        Raises Overloaded: when the database cannot be asked.
        """
        try:
            return await self._rules.applicable(principal, model)
        except self._keeper.failures:
            raise _unavailable() from None

    async def admit(
        self,
        principal: Principal,
        model: str,
        parts: tuple[PromptWork, ...],
        *,
        service_tier: str,
        min_tokens: int,
        capacity: int,
        is_free: bool = False,
        is_batch: bool = False,
    ) -> Admission:
        """Reserve the amounts of all parts of a request in the limits that apply.

        capacity: completions that the engine takes at once. is_free: whether nobody is charged for the request's
        tokens, which count for all limits but those of cost. is_batch: whether the request is a line of a batch: their
        number is bounded elsewhere, and limits of minutes and of concurrency do not count them.

        Raises LimitReached: when a limit is reached; the error has the limit and its standing.
        Raises Overloaded: when the limits cannot be read.
        """
        tenant, num_completions = principal.project_id, sum(part.num_choices for part in parts[:MAX_PROMPTS_AT_ONCE])
        if is_batch:
            num_completions = 0
        elif not self._queue_share.enter(tenant, num_completions, capacity):
            raise LimitReached(
                "This project has too many requests running and waiting at once. Send fewer at a time.",
                retry_after_s=RETRY_AFTER_S,
            )
        try:
            reservation = await self._reserve(
                principal, model, parts, service_tier, min_tokens, is_free=is_free, is_batch=is_batch
            )
        except BaseException:
            if num_completions:
                self._queue_share.leave(tenant, num_completions)
            raise

        def close() -> None:
            nonlocal num_completions
            if num_completions:
                self._queue_share.leave(tenant, num_completions)
                num_completions = 0
            if reservation is not None:
                self._keeper.close(reservation)

        if reservation is None:
            return Admission(max(part.max_tokens for part in parts), self.clock.now_ns(), (), close)
        return Admission(
            reservation.cap,
            reservation.instant_ns,
            rate_limit_headers(reservation.entries, reservation.instant_ns),
            close,
        )

    async def admit_shadow(
        self,
        principal: Principal,
        model: str,
        parts: tuple[PromptWork, ...],
        *,
        service_tier: str,
        min_tokens: int,
        is_free: bool = False,
    ) -> Admission:
        """Reserve the cost of a copy of a request; no other limit counts the copy, whose number is bounded elsewhere.

        is_free: whether nobody is charged for the copy's tokens, so that limits of cost do not count it either.

        Raises LimitReached: when a limit of cost is reached.
        Raises Overloaded: when the limits cannot be read.
        """
        reservation = await self._reserve(
            principal, model, parts, service_tier, min_tokens, is_shadow=True, is_free=is_free
        )
        if reservation is None:
            return Admission(max(part.max_tokens for part in parts), self.clock.now_ns(), (), lambda: None)
        return Admission(reservation.cap, reservation.instant_ns, (), partial(self._keeper.close, reservation))

    async def _reserve(
        self,
        principal: Principal,
        model: str,
        parts: tuple[PromptWork, ...],
        service_tier: str,
        min_tokens: int,
        *,
        is_shadow: bool = False,
        is_free: bool = False,
        is_batch: bool = False,
    ) -> Reservation | None:
        """Reserve the amounts of a request in all limits that apply; return None if none does.

        is_shadow: True: only limits of cost count the request. is_free: True: limits of cost do not count it. is_batch:
        True: limits of minutes and of concurrency do not count it.

        Raises LimitReached: when a limit is reached.
        Raises Overloaded: when the limits cannot be read.
        """
        work: RequestWork | None = None
        waits_s = iter(CONCURRENCY_WAITS_S)
        for _ in range(MAX_STALE + len(CONCURRENCY_WAITS_S)):
            limits = (await self.rules(principal, model)).reserving
            if is_shadow:
                limits = tuple(limit for limit in limits if limit.unit == "cost_nanos")
            if is_batch:
                limits = tuple(limit for limit in limits if limit.unit != "concurrency" and limit.window != "minute")
            if not limits:
                return None
            if work is None:
                price = FREE
                if not is_free:
                    price = self._prices.highest_price(
                        principal.organization_id, principal.project_id, model, service_tier, self.clock.now_ns()
                    )
                work = RequestWork(parts, price, max(1, min_tokens))
            answer = self._keeper.reserve(limits, work) or await self._keeper.ask(limits, work)
            if isinstance(answer, Reservation):
                return answer
            if answer is None:
                break
            if isinstance(answer, StaleRequest):
                self._rules.forget(principal.project_id)
                if answer.now_ns:
                    self.clock.set(answer.now_ns)
                continue
            wait_s = next(waits_s, None) if answer.limit.unit == "concurrency" else None
            if wait_s is None:
                entries = self._keeper.holdings.entries(limits, self.clock.now_ns())
                currency = self._prices.currency(principal.organization_id)
                raise refusal(answer, rate_limit_headers(entries, answer.now_ns), currency)
            await asyncio.sleep(wait_s)
        raise _unavailable()

    # calls of the meter

    def dispatched(self, request_id: str) -> None:
        """Record that the engine has a part of a request, so that `ended` will be called for it."""
        self._keeper.holdings.dispatched(request_id)

    def superseded(self, request_id: str) -> None:
        """Record that no engine has a part any more: the part is sent again, or freed when its request is closed."""
        self._keeper.holdings.superseded(request_id)
        self._keeper.wake_for_spare()

    def ended(self, request_id: str, usage: Usage) -> None:
        """Record the usage of a part that has ended, which has yet to be written to the ledger."""
        self._keeper.holdings.ended(request_id, usage)
        self._keeper.wake_for_spare()

    def seen(self, request_id: str, usage: Usage) -> None:
        """Record the least usage of a part whose engine was lost; the ledger does not have it yet."""
        self._keeper.holdings.seen(request_id, usage)

    def given_up(self, request_ids: Collection[str]) -> None:
        """Free the reserved parts of requests for which `ended` will not be called after all."""
        for request_id in request_ids:
            self._keeper.holdings.give_up(request_id)
        self._keeper.wake_for_spare()

    def settling(self, rows: Collection[Row]) -> AbstractAsyncContextManager[LeaseChanges]:
        """Give the lease changes that the transaction which writes these rows to the ledger has to make.

        Used as `Keeper.settling`.
        """
        return self._keeper.settling(rows)


def _unavailable() -> Overloaded:
    return Overloaded(
        "The limits of this project cannot be checked at the moment. Try again in a moment.",
        retry_after_s=RETRY_AFTER_S,
    )
