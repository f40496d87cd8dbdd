"""The items of a prompt with the time that they took, for policies that choose by speed."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from engine.protocol import Usage
from gateway.backends.generation import Item
from gateway.pipeline.items.attempts import Restarted

Took = Callable[[float, float], None]
"""A function that is called with the milliseconds to the first token, and per further token of the longest choice."""


async def timed_items(source: AsyncGenerator[Item | Restarted], took: Took) -> AsyncGenerator[Item | Restarted]:
    """Yield the items of `source`, and call `took` with their times before the last one."""
    start_s = time.monotonic()
    first_s: float | None = None
    longest = 1  # tokens of the longest choice: choices are generated side by side
    async with aclosing(source) as items:
        async for item in items:
            now_s = time.monotonic()
            if first_s is None:
                first_s = now_s
            if isinstance(item, list):
                longest = max([longest, *(piece.num_tokens for piece in item)])
            elif isinstance(item, Usage):
                took((first_s - start_s) * 1e3, (now_s - first_s) * 1e3 / max(1, longest - 1))
            yield item
