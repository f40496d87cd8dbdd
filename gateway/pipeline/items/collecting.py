"""All items of a prompt before its reply begins, so that the answer can be checked; then the same items once more."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from gateway.backends.generation import Item
from gateway.pipeline.collected import Collected, Collector
from gateway.pipeline.items.attempts import Restarted

Source = AsyncGenerator[Item | Restarted]


async def collect_items(
    source: Source, num_choices: int, check: Callable[[], None]
) -> tuple[list[Item | Restarted], Collected]:
    """Return all items of the attempt that completed, and the answer that they make up.

    check: raises where waiting is of no more use.
    """
    collector, items = Collector(num_choices), list[Item | Restarted]()
    async with aclosing(source) as coming:
        async for item in coming:
            check()
            if isinstance(item, Restarted):
                collector, items = Collector(num_choices), []
                continue
            items.append(item)
            if (collected := collector.add(item)) is not None:
                return items, collected
    raise AssertionError("the backend ended without a usage")


async def replay_items(items: Sequence[Item | Restarted]) -> Source:
    """Yield collected items again."""
    for item in items:
        yield item
