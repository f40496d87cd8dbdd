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


class SharedSeeds(Iterator[int]):
    """The seeds of a test with concurrent tasks that each take the next one, and their progress."""

    def __init__(self, number: int, full_number: int, *, full: bool) -> None:
        self._next = self.first = int(os.environ.get("FIRST_SEED", "0")) if full else 0
        self._end = full_number if full else number
        self._done: set[int] = set()
        self._begun_s = time.monotonic()

    def __next__(self) -> int:
        if self._next >= self._end:
            raise StopIteration
        self._next += 1
        return self._next - 1

    def done(self, seed: int) -> None:
        self._done.add(seed)

    def __str__(self) -> str:
        """Return the progress of the test, and the seed from which another run continues."""
        open_seeds = (seed for seed in range(self.first, self._end) if seed not in self._done)
        goes_on = next(open_seeds, self._end)
        seconds = (time.monotonic() - self._begun_s) / max(1, len(self._done))
        return f"{len(self._done)} of {self._end - self.first}, {seconds:.1f} s each: FIRST_SEED={goes_on} goes on"
