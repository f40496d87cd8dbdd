"""A background worker goes on, whatever its steps raise."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from gateway.support.worker import Worker, stop_all
from tests.patience import PATIENCE_S


class Step:
    """A step that raises these errors, one at each call, and succeeds afterwards."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self.began_s: list[float] = []
        self.done = asyncio.Event()

    async def __call__(self) -> None:
        self.began_s.append(asyncio.get_running_loop().time())
        if self._errors:
            raise self._errors.pop(0)
        self.done.set()


@asynccontextmanager
async def working(worker: Worker) -> AsyncIterator[Worker]:
    worker.start()
    try:
        yield worker
    finally:
        await worker.stop()


async def wait_for_event(done: asyncio.Event) -> None:
    await asyncio.wait_for(done.wait(), PATIENCE_S)


async def test_no_error_ends_a_worker() -> None:
    step = Step(OSError("away"), KeyError("a mistake"), ValueError("another"))
    async with working(Worker(step, 0.01, name="test")):
        await wait_for_event(step.done)
        step.done.clear()
        await wait_for_event(step.done)


async def test_no_step_begins_after_stop() -> None:
    step = Step()
    async with working(Worker(step, 0.0, name="test")) as worker:
        await wait_for_event(step.done)
        await worker.stop()
        step.done.clear()
        await asyncio.sleep(0.01)
        assert not step.done.is_set()


async def test_a_step_that_runs_has_ended_when_stop_returns() -> None:
    ended, running = [], asyncio.Event()

    def step(name: str) -> Callable[[], asyncio.Future[None]]:
        async def run() -> None:
            try:
                running.set()
                await asyncio.sleep(3600.0)
            finally:
                await asyncio.sleep(0.01)
                ended.append(name)

        return lambda: asyncio.ensure_future(run())

    first, second = (Worker(step(name), 0.0, name=name) for name in ("first", "second"))
    first.start()
    second.start()
    await wait_for_event(running)
    await asyncio.sleep(0)
    await stop_all(first, second)
    assert sorted(ended) == ["first", "second"]


async def test_stopping_a_worker_that_was_never_started_does_nothing() -> None:
    await Worker(Step(), 0.0, name="test").stop()


async def test_a_worker_is_woken_between_steps() -> None:
    step, wake = Step(KeyError("a mistake")), asyncio.Event()
    async with working(Worker(step, 3600.0, name="test", wake=wake)):
        await asyncio.sleep(0)  # the first step
        wake.set()
        await wait_for_event(step.done)


async def test_a_worker_that_rests_first_takes_no_step_before_it_is_woken() -> None:
    step, wake = Step(), asyncio.Event()
    async with working(Worker(step, math.inf, name="test", wake=wake, rests_first=True)):
        await asyncio.sleep(0.01)
        assert not step.began_s
        wake.set()
        await wait_for_event(step.done)


async def test_rests_after_failed_steps_double_and_end_with_the_first_that_succeeds() -> None:
    step = Step(OSError("away"), OSError("away"), OSError("away"), OSError("away"))
    async with working(Worker(step, 3600.0, name="test", retry_s=(0.05, 0.2))):
        await wait_for_event(step.done)
        rests_s = [after - before for before, after in zip(step.began_s, step.began_s[1:], strict=False)]
        assert all(rest >= least for rest, least in zip(rests_s, (0.05, 0.1, 0.2, 0.2), strict=True))
        step.done.clear()
        await asyncio.sleep(0.3)
        assert not step.done.is_set(), "an hour's rest after one that succeeded"


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

    async with working(Worker(step, interval_s, name="test", by_starts=True)):
        await wait_for_event(done)
    assert began_s[1] - began_s[0] < interval_s * 1.6, "not the interval after its end"
    assert began_s[1] - began_s[0] >= interval_s * 0.79
