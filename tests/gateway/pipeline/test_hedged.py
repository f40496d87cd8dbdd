"""A late prompt is answered by the try that begins first, and of two tries one is billed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from gateway.backends.generation import Generation, Item
from gateway.domain.errors import Overloaded
from gateway.domain.routing.hedge_budget import MOST_SAVED, SHARE, HedgeBudget
from gateway.domain.routing.retry_budget import RetryBudget
from gateway.pipeline.items.hedged import Hedging, generate_hedged
from tests.gateway.pipeline.test_attempts import PIECE, REQUEST, USAGE, ScriptedBackend, pool_of


class Gated(ScriptedBackend):
    """A fake backend that answers or fails once its gate is open."""

    def __init__(self, *items: Item, **end: Any) -> None:
        super().__init__(*items, **end)
        self.gate, self.has_begun, self.is_closed = asyncio.Event(), asyncio.Event(), False

    async def generate(self, generation: Generation) -> AsyncGenerator[Item]:
        self.has_begun.set()
        try:
            await self.gate.wait()
            async for item in super().generate(generation):
                yield item
        finally:
            self.is_closed = True


class RecordingHedging:
    """A hedging that records which tries lost and won."""

    def __init__(self, *, may_begin: bool = True) -> None:
        self.lost: list[tuple[int, int]] = []
        self.won: list[bool] = []
        self.hedging = Hedging(
            0.0, lambda _: may_begin, lambda lost, by: self.lost.append((lost.start, by.start)), self.won.append
        )


def begin(told: RecordingHedging, *backends: ScriptedBackend) -> asyncio.Task[list[Any]]:
    async def read() -> list[Any]:
        source = generate_hedged(pool_of(*backends), Generation(REQUEST), RetryBudget(), told.hedging)
        return [item async for item in source]

    return asyncio.create_task(read())


async def test_the_second_try_answers_where_it_begins_first_and_the_first_is_aborted() -> None:
    late, quick, told = Gated(PIECE, USAGE), Gated(PIECE, USAGE), RecordingHedging()
    reading = begin(told, late, quick)
    await quick.has_begun.wait()
    quick.gate.set()
    assert await reading == [PIECE, USAGE]
    assert (late.is_closed, told.lost, told.won) == (True, [(0, 4)], [True])


async def test_the_first_try_answers_where_it_begins_first_after_all() -> None:
    late, slower, told = Gated(PIECE, USAGE), Gated(PIECE, USAGE), RecordingHedging()
    reading = begin(told, late, slower)
    await slower.has_begun.wait()
    late.gate.set()
    assert await reading == [PIECE, USAGE]
    assert (slower.is_closed, told.lost, told.won) == (True, [(4, 0)], [False])


async def test_a_try_that_fails_while_the_other_runs_is_superseded() -> None:
    dying, quick, told = Gated(kind="died"), Gated(PIECE, USAGE), RecordingHedging()
    reading = begin(told, dying, quick)
    await quick.has_begun.wait()
    dying.gate.set()
    while not told.lost:  # noqa: ASYNC110 - no event tells
        await asyncio.sleep(0)
    quick.gate.set()
    assert await reading == [PIECE, USAGE]
    assert (dying.superseded, dying.settled, told.lost) == ([0], [], [(0, 4)])


async def test_a_winner_that_fails_in_the_midst_is_billed() -> None:
    """The losing try has ended by then, so it cannot take over."""
    late, quick, told = Gated(PIECE, USAGE), Gated(PIECE, kind="died"), RecordingHedging()
    reading = begin(told, late, quick)
    await quick.has_begun.wait()
    quick.gate.set()
    with pytest.raises(Overloaded, match="it was died"):
        await reading
    assert (quick.settled, quick.superseded, late.is_closed) == ([4], [], True)


@pytest.mark.parametrize("first_to_fail", [0, 1, None])
async def test_of_two_tries_that_fail_one_is_settled(first_to_fail: int | None) -> None:
    both, told = [Gated(kind="died"), Gated(kind="died")], RecordingHedging()
    reading = begin(told, *both)
    await both[1].has_begun.wait()
    if first_to_fail is not None:
        both[first_to_fail].gate.set()
        while not told.lost:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0)
    for each in both:
        each.gate.set()
    with pytest.raises(Overloaded, match="it was died"):
        await reading
    settled, superseded = (
        [attempt for each in both for attempt in getattr(each, what)] for what in ("settled", "superseded")
    )
    assert sorted(settled + superseded) == [0, 4]
    assert len(settled) == 1


async def test_a_hedge_that_may_not_begin_and_one_without_a_replica_leave_the_first_try() -> None:
    for backends, told in (
        ([Gated(PIECE, USAGE), Gated()], RecordingHedging(may_begin=False)),
        ([Gated(PIECE, USAGE)], RecordingHedging()),
    ):
        reading = begin(told, *backends)
        await backends[0].has_begun.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        backends[0].gate.set()
        assert await reading == [PIECE, USAGE]
        assert (told.lost, told.won, [each.has_begun.is_set() for each in backends[1:]]) == (
            [],
            [],
            [False] * (len(backends) - 1),
        )


async def test_a_reader_that_leaves_ends_both_tries() -> None:
    both, told = [Gated(PIECE), Gated(PIECE)], RecordingHedging()
    reading = begin(told, *both)
    await both[1].has_begun.wait()
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert [each.is_closed for each in both] == [True, True]


def test_second_tries_are_a_twentieth_of_all_requests() -> None:
    budget, num_taken = HedgeBudget(), 0
    for _ in range(10_000):
        budget.sent()
        num_taken += budget.take()
    assert num_taken == 10_000 * SHARE
    for _ in range(10_000):
        budget.sent()
    assert sum(budget.take() for _ in range(100)) == MOST_SAVED
