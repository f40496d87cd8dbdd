"""Hedges in simulated time, over servers that stall at times: how late the first token is, and how many tries it costs.

All times are simulated, so the load of the machine changes no result.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from statistics import median
from typing import cast

import msgspec
import pytest

from gateway.backends.base import Model
from gateway.backends.generation import Generation, Item
from gateway.backends.pool import ManagedBackend, PoolRevision, Replica
from gateway.domain.routing.hedge_budget import SHARE, HedgeBudget
from gateway.domain.routing.retry_budget import RetryBudget
from gateway.pipeline.items.hedged import Hedging, generate_hedged
from gateway.routing.measured import MeasuredSpeeds
from tests.gateway.pipeline.test_attempts import PIECE, REQUEST, USAGE, ScriptedBackend
from tests.virtual_time import run_virtually

NUM_REQUESTS, NUM_FIRST = 2_000, 100
"""The number of all requests, and of the first ones, which come while little is measured."""
PER_S = 20.0
USUAL_S, STALL_S, STALLED_SHARE = 0.2, 2.0, 0.02
NEVER_S = 3600.0


class StallingServer(ScriptedBackend):
    """A fake server whose first tokens take a usual time with some spread, and now and then two seconds more."""

    def __init__(self, draw: random.Random, spread: float) -> None:
        super().__init__(PIECE, USAGE)
        self.num_in_flight = self.num_asked = 0
        self._draw = draw
        self._spread = spread

    async def generate(self, generation: Generation) -> AsyncGenerator[Item]:
        self.num_in_flight += 1
        self.num_asked += 1
        took_s = USUAL_S * self._draw.lognormvariate(0.0, self._spread)
        try:
            await asyncio.sleep(took_s + STALL_S * (self._draw.random() < STALLED_SHARE))
            async for item in super().generate(generation):
                yield item
        finally:
            self.num_in_flight -= 1


class FirstTokenTimes(msgspec.Struct, frozen=True):
    """The times to first token that clients measured, in milliseconds."""

    times_ms: list[float]
    """The times to first tokens, the shortest first."""
    delay_ms: float
    """The median of the hedges' delays."""
    num_sent: int

    def part(self, share: float) -> float:
        """Return the milliseconds within which this share of first tokens came."""
        return self.times_ms[int(share * len(self.times_ms))]

    @property
    def bound_ms(self) -> float:
        """The promised time for 99 of 100 first tokens."""
        return self.delay_ms + 1.3 * median(self.times_ms)


async def ask_many(spread: float, delay_ms: float | None, seed: int) -> FirstTokenTimes:
    """Send many requests to two servers; return the measured times.

    delay_ms: the delay of the hedge; None uses the measured delay.
    """
    draw, now_s = random.Random(seed), asyncio.get_running_loop().time
    servers = [StallingServer(draw, spread) for _ in range(2)]
    replicas = [Replica(f"r{number}", cast("ManagedBackend", each)) for number, each in enumerate(servers)]
    pool = PoolRevision("tiny", cast("Model", None), replicas)
    budget, retries, measured = HedgeBudget(), RetryBudget(), MeasuredSpeeds()
    times_ms, delays_ms = list[float](), list[float]()

    async def ask() -> None:
        budget.sent()
        began_s, speed = now_s(), measured.find("proj", "m", now_s())
        late_ms = delay_ms or (None if speed is None else speed.late_ms(began_s))
        after_s = NEVER_S if late_ms is None else late_ms / 1e3
        hedging = Hedging(after_s, lambda _: budget.take(), lambda lost, by: None, lambda is_second: None)
        first_ms = 0.0
        async for _ in generate_hedged(pool, Generation(REQUEST), retries, hedging):
            first_ms = first_ms or (now_s() - began_s) * 1e3
        measured.add("proj", "m", now_s(), first_token_ms=first_ms, token_ms=0.0)
        times_ms.append(first_ms)
        delays_ms.append(after_s * 1e3)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(NUM_REQUESTS):
            tasks.create_task(ask())
            await asyncio.sleep(draw.expovariate(PER_S))
    num_sent = sum(each.num_asked for each in servers)
    return FirstTokenTimes(sorted(times_ms[NUM_FIRST:]), median(delays_ms), num_sent)


@pytest.mark.parametrize(("spread", "delay_ms"), [(0.3, 400.0), (0.02, None), (0.1, None)])
def test_99_of_100_first_tokens_come_within_the_delay_and_what_is_usual(
    spread: float, delay_ms: float | None, full: bool
) -> None:
    for seed in range(8 if full else 1):
        seen = run_virtually(ask_many(spread, delay_ms, seed))
        assert seen.part(0.99) <= seen.bound_ms
        assert seen.part(0.995) < STALL_S * 1e3 / 2, "hardly any stall is left, as the budget is not used up before"
        assert seen.num_sent <= (1 + SHARE) * NUM_REQUESTS


def test_what_stalls_gets_its_second_try_though_more_than_the_budget_is_late_for_a_moment() -> None:
    """A tenth of all first tokens come after the hedge's delay, and few of them come much later."""
    seen = run_virtually(ask_many(0.5, 400.0, seed=1))
    assert seen.part(0.99) < 0.75 * STALL_S * 1e3
    assert seen.num_sent <= (1 + SHARE) * NUM_REQUESTS
