"""The seeds of a long test, which goes on where an earlier run stopped: `FIRST_SEED=k` begins with seed k."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

TOLD_EVERY_S = 30.0


def seeds(number: int, full_number: int, *, full: bool) -> Iterator[int]:
    """Yield the seeds of a test.

    At full size the last seed is printed now and then, so that a run that is stopped tells where the next one begins.
    """
    first = int(os.environ.get("FIRST_SEED", "0")) if full else 0
    told_s = time.monotonic()
    for seed in range(first, full_number if full else number):
        yield seed
        if full and time.monotonic() - told_s > TOLD_EVERY_S:
            told_s = time.monotonic()
            print(f"seeds {first} to {seed} are seen: FIRST_SEED={seed + 1} goes on", flush=True)
