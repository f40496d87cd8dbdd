"""The items of a prompt with the time that they took, for policies that choose by speed."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from engine.protocol import Usage
from gateway.backends.generation import Item
from gateway.pipeline.attempts import Restarted

Took = Callable[[float, float], None]
"""Called with the milliseconds to the first token, and those of each token after it."""


async def timed(source: AsyncGenerator[Item | Restarted], took: Took) -> AsyncGenerator[Item | Restarted]:
    """Yield the same items, and call `took` before the last one."""
    start_s = time.monotonic()
    first_s: float | None = None
    async with aclosing(source) as items:
        async for item in items:
            now_s = time.monotonic()
            if first_s is None:
                first_s = now_s
            if isinstance(item, Usage):
                took((first_s - start_s) * 1e3, (now_s - first_s) * 1e3 / max(1, item.completion_tokens - 1))
            yield item
