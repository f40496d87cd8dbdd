"""The most processor time for which an event loop of this process is kept at a stretch."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future

BEAT_S = 0.001


async def longest_beat_s(is_over: Future[None]) -> float:
    """Run until `is_over`, and return the most processor seconds of this thread between two beats of the event loop.

    is_over: the future whose end ends the measurement.
    """
    longest_s = 0.0
    while not is_over.done():
        before_s = time.thread_time()
        await asyncio.sleep(BEAT_S)
        longest_s = max(longest_s, time.thread_time() - before_s)
    return longest_s
