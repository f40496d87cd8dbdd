"""Merged streams lose nothing, keep each source's order, and close every source; so do jobs that run side by side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from gateway.domain.limits.work import MAX_PROMPTS_AT_ONCE
from gateway.pipeline.merge import merge_items, run_jobs


class Sources:
    """Async generators, and the number of open ones."""

    def __init__(self) -> None:
        self.num_open = 0
        self.peak = 0

    async def count(self, to: int, fail_at: int | None = None) -> AsyncGenerator[int]:
        self.num_open += 1
        self.peak = max(self.peak, self.num_open)
        try:
            for number in range(to):
                await asyncio.sleep(0)
                if number == fail_at:
                    raise ValueError("broken")
                yield number
        finally:
            self.num_open -= 1


async def test_every_item_comes_in_its_sources_order_and_few_sources_run_at_once():
    sources = Sources()
    seen: dict[int, list[int]] = {}
    async for index, number in merge_items([sources.count(index) for index in range(40)]):
        seen.setdefault(index, []).append(number)
    assert seen == {index: list(range(index)) for index in range(1, 40)}
    assert sources.peak == MAX_PROMPTS_AT_ONCE
    assert sources.num_open == 0


async def test_the_first_error_ends_all():
    sources = Sources()
    with pytest.raises(ValueError, match="broken"):
        async for _ in merge_items([sources.count(10**6), sources.count(10, fail_at=5)]):
            pass
    assert sources.num_open == 0


@pytest.mark.parametrize("num_sources", [1, 3])
async def test_closing_it_closes_every_source(num_sources: int):
    sources = Sources()
    stream = merge_items([sources.count(10**6) for _ in range(num_sources)])
    await anext(stream)
    await stream.aclose()
    assert sources.num_open == 0


async def last_number(source: AsyncGenerator[int]) -> int:
    async with aclosing(source):
        return [number async for number in source][-1]


async def test_all_results_come_in_order_and_few_jobs_run_at_once():
    sources = Sources()
    assert await run_jobs([last_number(sources.count(count)) for count in range(40, 0, -1)]) == list(range(39, -1, -1))
    assert sources.peak == MAX_PROMPTS_AT_ONCE


async def test_the_first_job_that_fails_ends_all():
    sources = Sources()
    with pytest.raises(ValueError, match="broken"):
        await run_jobs(
            [
                last_number(sources.count(10**6)),
                last_number(sources.count(10, 5)),
                *(last_number(sources.count(9)) for _ in range(30)),
            ]
        )
    assert sources.num_open == 0
