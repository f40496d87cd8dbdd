"""Credits are never exceeded, never lost, and given in order."""

from __future__ import annotations

import asyncio
import random

import pytest

from gateway.backends.engine.window import Credits


async def test_random_takers_never_exceed_the_limit_and_lose_nothing():
    rng, credits, peak = random.Random(1), Credits(), 0
    credits.set_limit(3)

    async def taker() -> None:
        nonlocal peak
        try:
            await credits.take(rng.choice([0.0, 0.005, 1.0]))
        except TimeoutError:
            return
        try:
            peak = max(peak, credits.num_taken)
            await asyncio.sleep(rng.choice([0, 0.001]))
        finally:
            credits.give()

    tasks = [asyncio.create_task(taker()) for _ in range(300)]
    for task in rng.sample(tasks, 60):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert 0 < peak <= 3
    assert credits.num_taken == 0


async def test_waiters_are_served_in_order_and_a_raised_limit_serves_them():
    credits, served = Credits(), []

    async def taker(name: str) -> None:
        await credits.take(5)
        served.append(name)

    tasks = [asyncio.create_task(taker(name)) for name in "abc"]
    await asyncio.sleep(0)
    credits.set_limit(2)
    await asyncio.gather(*tasks[:2])
    assert served == ["a", "b"]
    credits.give()
    await tasks[2]
    assert served == ["a", "b", "c"]


async def test_a_taker_that_gives_up_leaves_no_trace():
    credits = Credits()
    with pytest.raises(TimeoutError):
        await credits.take(0.001)
    credits.set_limit(1)
    assert credits.num_taken == 0
    await credits.wait_idle()
    await credits.take(0)
    assert credits.num_taken == 1


async def test_a_credit_granted_to_a_cancelled_taker_comes_back():
    credits = Credits()
    waiting = asyncio.create_task(credits.take(5))
    await asyncio.sleep(0)
    credits.set_limit(1)  # granted, not yet noticed
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert credits.num_taken == 0
