"""One prompt at two replicas of a pool, where the first token of one is late.

The first replica to begin answers; the other try is aborted and costs nothing. Both tries share one reservation, and
each has attempts of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import msgspec

from gateway.backends.generation import Generation, Item
from gateway.backends.pool import PoolRevision
from gateway.domain.errors import GatewayError
from gateway.domain.routing.retry_budget import RetryBudget
from gateway.pipeline.items.attempts import Restarted, generate_items, has_no_successor
from gateway.pipeline.model_call import ModelCall

ATTEMPTS_PER_TRY = 4
"""The number of attempts reserved for each try: `attempts.MAX_ATTEMPTS` and the free one after a death."""

ASKED_AGAIN, LEAST_WAIT_S = 0.5, 0.1
"""If a second try may not begin yet, that is checked again after this part of the delay, but at least these seconds:
the first try may stall for much longer."""


class Hedging(msgspec.Struct, frozen=True):
    """The time of a second try, and the functions that are called about the tries."""

    delay_s: float
    """The seconds that the first try has for its first item."""
    may_begin: Callable[[range], bool]
    """The function that tells whether a second try may begin now, from the numbers of the first try's attempts."""
    lost: Callable[[range, range], None]
    """The function that is called with the numbers of a losing try's attempts, and with those of the other try's."""
    won: Callable[[bool], None]
    """The function that is called if there were two tries, with True where the second one answers."""


class _Try(msgspec.Struct, eq=False):
    """One of two tries at a prompt, with the task that waits for its first item."""

    attempts: range
    """The numbers that the try's attempts may have."""
    source: AsyncGenerator[Item | Restarted]
    first: asyncio.Task[Item | Restarted]
    """The task that waits for the try's first item."""
    has_ended: bool = False
    """True once the try has failed, or the other try answers."""


async def generate_hedged(
    pool: PoolRevision,
    generation: Generation,
    budget: RetryBudget,
    hedging: Hedging,
    on_unanswered: Callable[[GatewayError], None] | None = None,
    *,
    may_restart: bool = False,
    is_followed: Callable[[GatewayError], bool] = has_no_successor,
    call: ModelCall | None = None,
) -> AsyncGenerator[Item | Restarted]:
    """Yield the items of one prompt's completions, as `attempts.generate_items` does with these arguments.

    Raises as `attempts.generate_items`; when both tries fail, the error of the try that failed last.
    """
    tries, tried = list[_Try](), set[str]()

    def begin() -> _Try:
        start = generation.request.attempt + len(tries) * ATTEMPTS_PER_TRY

        def follows(error: GatewayError) -> bool:
            made.has_ended = True
            return any(not each.has_ended for each in tries) or is_followed(error)

        source = generate_items(
            pool,
            _with_attempt(generation, start),
            budget,
            on_unanswered,
            may_restart=may_restart,
            is_followed=follows,
            tried=tried,
            call=call,
        )
        made = _Try(range(start, start + ATTEMPTS_PER_TRY), source, asyncio.create_task(_next_item(source)))
        tries.append(made)
        return made

    try:
        winner = await _first_to_begin(pool, hedging, begin, tried)
        if len(tries) > 1:
            hedging.won(winner is tries[1])
        for each in tries:
            if each is not winner:
                each.has_ended = True  # so that it takes nothing over where the winner fails in the midst
                await _close(each)
        yield winner.first.result()
        async for item in winner.source:
            yield item
    finally:
        for each in tries:
            await _close(each)


async def _first_to_begin(pool: PoolRevision, hedging: Hedging, begin: Callable[[], _Try], tried: set[str]) -> _Try:
    """Return the try whose first item arrives first, and close the other one.

    Raises the error of the try that failed last: when no try has begun.
    """
    running, wait_s = [begin()], hedging.delay_s
    while True:
        await asyncio.wait({running[0].first}, timeout=wait_s)
        if running[0].first.done() or pool.any_ready(tried) is None:
            break
        if hedging.may_begin(running[0].attempts):
            running.append(begin())
            break
        wait_s = max(LEAST_WAIT_S, hedging.delay_s * ASKED_AGAIN)
    while True:
        await asyncio.wait({each.first for each in running}, return_when=asyncio.FIRST_COMPLETED)
        for each in [each for each in running if each.first.done()]:
            others = [other for other in running if other is not each]
            if each.first.exception() is None:
                for other in others:
                    hedging.lost(other.attempts, each.attempts)
                return each
            if not others:
                return await _failed(each)
            hedging.lost(each.attempts, others[0].attempts)
            running.remove(each)


async def _failed(failed_try: _Try) -> _Try:
    """Raise the error with which a try failed; never returns."""
    await failed_try.first
    raise AssertionError("the try has failed")


async def _close(any_try: _Try) -> None:
    """End a try, whether it waits, runs or has ended."""
    if not any_try.first.done():
        any_try.first.cancel()
    await asyncio.gather(any_try.first, return_exceptions=True)
    await any_try.source.aclose()


async def _next_item(source: AsyncGenerator[Item | Restarted]) -> Item | Restarted:
    return await anext(source)


def _with_attempt(generation: Generation, attempt: int) -> Generation:
    request = msgspec.structs.replace(generation.request, attempt=attempt)
    return msgspec.structs.replace(generation, request=request)
