"""Tests of `PacedCalls`: order, rests, and what others get to do in between."""

from __future__ import annotations

import asyncio
import time

import pytest

from gateway.support.paced_calls import MAX_REST_S, REST_PER_WORK, PacedCalls

WORK_S = 0.005


async def test_calls_come_in_order_and_others_run_between_any_two():
    calls, seen = PacedCalls(), list[str | int]()
    for number in range(20):
        calls.call(lambda number=number: seen.append(number))

    async def other() -> None:
        while 19 not in seen:
            seen.append("other")
            await asyncio.sleep(0)

    await other()
    assert [each for each in seen if each != "other"] == list(range(20))
    assert all("other" in seen[seen.index(number) : seen.index(number + 1)] for number in range(19))


async def test_the_rest_after_a_call_is_longer_than_its_work():
    calls, done, began_s = PacedCalls(), asyncio.Event(), time.monotonic()

    async def work(number: int) -> None:
        await calls.turn()
        time.sleep(WORK_S)  # noqa: ASYNC251 - the work that holds the loop
        if number == 9:
            done.set()

    tasks = [asyncio.create_task(work(number)) for number in range(10)]
    await done.wait()
    assert time.monotonic() - began_s >= 10 * WORK_S + 9 * REST_PER_WORK * WORK_S
    await asyncio.gather(*tasks)


async def test_a_call_that_comes_when_none_waits_is_made_after_the_rest_of_the_last_one():
    calls, began_s = PacedCalls(), time.monotonic()
    for _ in range(10):
        await calls.turn()
        time.sleep(WORK_S)  # noqa: ASYNC251 - the work that holds the loop
        await asyncio.sleep(0)
    assert time.monotonic() - began_s >= 10 * WORK_S + 9 * REST_PER_WORK * WORK_S


async def test_a_loop_that_others_held_for_long_makes_no_long_rest():
    calls, came = PacedCalls(), asyncio.Event()
    calls.call(lambda: None)
    calls.call(came.set)
    await asyncio.sleep(0)
    time.sleep(8 * MAX_REST_S)  # noqa: ASYNC251 - the work of somebody else
    began_s = time.monotonic()
    await came.wait()
    assert time.monotonic() - began_s < REST_PER_WORK * 8 * MAX_REST_S / 2


async def test_a_caller_that_is_cancelled_takes_no_turn_from_the_others():
    calls = PacedCalls()
    turns = [asyncio.create_task(calls.turn()) for _ in range(3)]
    await asyncio.sleep(0)
    turns[1].cancel()
    await turns[2]
    assert turns[0].done() and turns[1].cancelled()


async def test_later_calls_are_made_after_one_that_raised():
    calls, came = PacedCalls(), asyncio.Event()
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    def fail() -> None:
        raise LookupError("of the first call")

    calls.call(fail)
    calls.call(came.set)
    await came.wait()
    with pytest.raises(LookupError, match="of the first call"):
        raise reported[0]["exception"]  # type: ignore[misc]
