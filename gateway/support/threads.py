"""Runs work on much content, such as encrypting it, in a thread, so that the event loop goes on serving others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

ABOVE_BYTES = 1 << 20


async def maybe_in_thread(num_bytes: int, work: Callable[[], T]) -> T:
    """Return the result of `work` on this many bytes, done in a thread if they are more than ABOVE_BYTES."""
    return await asyncio.to_thread(work) if num_bytes > ABOVE_BYTES else work()
