"""Calls are executed in order by a thread that belongs to one owner."""

from __future__ import annotations

import asyncio
import threading

import pytest

from gateway.support.threads import OwnThread


async def test_calls_are_made_in_order_by_one_other_thread() -> None:
    thread = OwnThread("own")
    thread.start()
    made: list[tuple[int, str]] = []

    def call(number: int) -> None:
        made.append((number, threading.current_thread().name))

    await asyncio.gather(*(thread.call(lambda number=number: call(number)) for number in range(10)))  # type: ignore[misc]
    thread.stop()
    assert made == [(number, "own") for number in range(10)]


async def test_an_error_is_the_callers_and_the_next_call_is_made() -> None:
    thread = OwnThread("own")
    thread.start()
    made: list[int] = []

    def fail() -> None:
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        await thread.call(fail)
    await thread.call(lambda: made.append(1))
    thread.stop()
    assert made == [1]


async def test_a_call_that_nobody_waits_for_any_more_is_made_all_the_same() -> None:
    thread = OwnThread("own")
    thread.start()
    goes_on, made = threading.Event(), threading.Event()

    def work() -> None:
        goes_on.wait()
        made.set()

    waiting = asyncio.create_task(thread.call(work))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    goes_on.set()
    await asyncio.to_thread(thread.stop)
    assert made.is_set()
