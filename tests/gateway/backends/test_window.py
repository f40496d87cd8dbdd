"""Places in a window are never exceeded, never lost, and given in order."""

from __future__ import annotations

import asyncio
import random

import pytest

from gateway.backends.window import Window


async def test_random_takers_never_exceed_the_limit_and_lose_nothing():
    rng, window, peak = random.Random(1), Window(), 0
    window.set_limit(3)

    async def taker() -> None:
        nonlocal peak
        try:
            await window.take(rng.choice([0.0, 0.005, 1.0]))
        except TimeoutError:
            return
        try:
            peak = max(peak, window.num_taken)
            await asyncio.sleep(rng.choice([0, 0.001]))
        finally:
            window.give()

    tasks = [asyncio.create_task(taker()) for _ in range(300)]
    for task in rng.sample(tasks, 60):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert 0 < peak <= 3
    assert window.num_taken == 0


async def test_waiters_are_served_in_order_and_a_raised_limit_serves_them():
    window, served = Window(), []

    async def taker(name: str) -> None:
        await window.take(5)
        served.append(name)

    tasks = [asyncio.create_task(taker(name)) for name in "abc"]
    await asyncio.sleep(0)
    window.set_limit(2)
    await asyncio.gather(*tasks[:2])
    assert served == ["a", "b"]
    window.give()
    await tasks[2]
    assert served == ["a", "b", "c"]


async def test_a_taker_that_gives_up_takes_no_place():
    window = Window()
    with pytest.raises(TimeoutError):
        await window.take(0.001)
    window.set_limit(1)
    assert window.num_taken == 0
    await window.wait_idle()
    await window.take(0)
    assert window.num_taken == 1


async def test_a_credit_granted_to_a_cancelled_taker_comes_back():
    window = Window()
    waiting = asyncio.create_task(window.take(5))
    await asyncio.sleep(0)
    window.set_limit(1)  # granted, not yet noticed
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert window.num_taken == 0
