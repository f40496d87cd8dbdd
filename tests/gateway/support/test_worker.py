"""What works in the background goes on, whatever its steps raise."""

from __future__ import annotations

import asyncio

from gateway.support.worker import forever
from tests.patience import PATIENCE_S


class Step:
    """Raises these, one after the other, and is done after them."""

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
