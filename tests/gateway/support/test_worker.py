"""A background worker goes on, whatever its steps raise."""

from __future__ import annotations

import asyncio

from gateway.support.worker import forever
from tests.patience import PATIENCE_S


class Step:
    """A step that raises these errors one after the other, and is done afterwards."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self.done = asyncio.Event()

    async def __call__(self) -> None:
        if self._errors:
            raise self._errors.pop(0)
        self.done.set()


async def test_no_error_ends_it() -> None:
    step = Step(OSError("away"), KeyError("a mistake"), ValueError("another"))
    task = asyncio.create_task(forever(step, 0.01, name="test"))
    await asyncio.wait_for(step.done.wait(), PATIENCE_S)
    assert not task.done()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_it_is_woken_between_steps() -> None:
    step, wake = Step(KeyError("a mistake")), asyncio.Event()
    task = asyncio.create_task(forever(step, 3600.0, name="test", wake=wake))
    await asyncio.sleep(0)  # the first step
    wake.set()
    await asyncio.wait_for(step.done.wait(), PATIENCE_S)
    task.cancel()
    await asyncio.wait([task])


async def test_steps_begin_at_an_interval_where_that_is_asked_for() -> None:
    """A step that takes longer than the interval is followed by the next one almost at once."""
    interval_s, began_s = 1.0, list[float]()
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    async def step() -> None:
        began_s.append(loop.time())
        await asyncio.sleep(interval_s * 0.6)
        if len(began_s) == 2:
            done.set()

    task = asyncio.create_task(forever(step, interval_s, name="test", by_starts=True))
    await asyncio.wait_for(done.wait(), PATIENCE_S)
    task.cancel()
    await asyncio.wait([task])
    assert began_s[1] - began_s[0] < interval_s * 1.6, "not the interval after its end"
    assert began_s[1] - began_s[0] >= interval_s * 0.79
