"""Several prompts of one request, run side by side: as one stream of all, or to their ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from gateway.domain.limits.work import MAX_PROMPTS_AT_ONCE

T = TypeVar("T")

MAX_QUEUED = 64


async def merge_items(sources: Sequence[AsyncGenerator[T]]) -> AsyncGenerator[tuple[int, T]]:
    """Yield each item with the index of its source, in the order in which items come.

    At most MAX_PROMPTS_AT_ONCE sources run at a time. The first error ends everything. Closing the generator closes
    every source.
    """
    if len(sources) == 1:
        async with aclosing(sources[0]) as only:
            async for each in only:
                yield 0, each
        return
    queue: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue(MAX_QUEUED)
    places = asyncio.Semaphore(MAX_PROMPTS_AT_ONCE)

    async def pump(index: int, source: AsyncGenerator[T]) -> None:
        try:
            async with places, aclosing(source):
                async for item in source:
                    await queue.put((index, item))
        except Exception as error:
            await queue.put(error)
        else:
            await queue.put(None)

    pumps = [asyncio.create_task(pump(index, source)) for index, source in enumerate(sources)]
    num_open = len(pumps)
    try:
        while num_open:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                num_open -= 1
            else:
                yield item
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def run_jobs(jobs: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of jobs in order; at most MAX_PROMPTS_AT_ONCE jobs run at a time.

    The first error ends all jobs.
    """
    if len(jobs) == 1:
        return [await jobs[0]]
    places = asyncio.Semaphore(MAX_PROMPTS_AT_ONCE)

    async def limited(job: Coroutine[Any, Any, T]) -> T:
        async with places:
            return await job

    tasks = [asyncio.create_task(limited(job)) for job in jobs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for job in jobs:
            job.close()  # one that never began
