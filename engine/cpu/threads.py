"""The number of threads that compute while other work shares the processors.

This module knows nothing of models or steps.

A thread whose processor is taken by other work holds up those that wait for it, so beside one busy process one thread
fewer is faster. If every processor has other work, a thread fewer gains nothing: then all compute. The decision counts
the processor time that other work takes, rather than the time for which our threads wait: once there are fewer threads
none of them waits, and nothing would tell when there may be more.

A change of the number leaves the deltas of adapters as they are, bit by bit. Frozen matrices may be summed up in
another order, so whole outputs agree up to rounding, as they do beside other neighbors in a batch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

INTERVAL_S = 1.0
STALE_S = 5.0
"""Measurements that lie further apart are ignored: the engine had nothing to compute in between."""

PATIENCE_INTERVALS = 3
"""Intervals in a row in which other work must be busy before a thread is given up for it. Work that comes and goes, as
that of a gateway, takes less than the thread would compute."""

ALMOST_ONE = 0.75
"""The share of a processor from which on other work counts as busy all the time."""


class ThreadCount:
    """Decides how many threads compute, between one and most, from the processor time that other work takes."""

    def __init__(self, most: int, num_processors: int) -> None:
        self.count = most
        self._most = most
        self._num_processors = num_processors
        self._num_crowded = 0

    def take(self, elapsed_s: float, others_s: float) -> int:
        """Return how many threads shall compute from now on.

        elapsed_s: the time since the last call; others_s: the processor time that everything else used in it. A thread
        comes back at once, and is given up after PATIENCE_INTERVALS.
        """
        wanted = self._wanted_threads(others_s / elapsed_s)
        self._num_crowded = self._num_crowded + 1 if wanted < self.count else 0
        if wanted > self.count or self._num_crowded >= PATIENCE_INTERVALS:
            self.count = wanted
            self._num_crowded = 0
        return self.count

    def _wanted_threads(self, others: float) -> int:
        """Return the number of threads that can have a processor each, or `most` if no processor is left.

        others: the number of processors that other work used. If processors were short, all threads and processes
        shared them alike, so the number of others is taken to be larger by the ratio of our threads' number to the
        processors they had.
        """
        left = self._num_processors - others
        if left <= 0:
            return self._most
        num_others = int(others * max(1.0, self.count / left) + 1 - ALMOST_ONE)
        num_free = self._num_processors - num_others
        return min(self._most, num_free) if num_free > 0 else self._most


class Usage(NamedTuple):
    """Clocks of processor time at one moment, in seconds."""

    now_s: float
    all_s: float
    """The time for which the processors of this process were busy with any work."""
    own_s: float
    """The processor time of this process."""


class AdaptedThreads:
    """Keeps PyTorch's number of threads at the number of processors that other work leaves.

    An instance belongs to the thread that computes.
    """

    def __init__(
        self, most: int, usage: Callable[[], Usage | None], num_processors: int, interval_s: float = INTERVAL_S
    ) -> None:
        self._interval_s = interval_s
        self._count = ThreadCount(most, num_processors)
        self._usage = usage
        self._last = usage()
        self._next_s = 0.0

    def adapt(self) -> None:
        """Change the number of threads if need be, at most once a second. Call this before each step."""
        now_s = time.monotonic()
        if now_s < self._next_s or self._last is None:
            return
        self._next_s = now_s + self._interval_s
        last, self._last = self._last, self._usage()
        if self._last is None or not INTERVAL_S / 2 <= self._last.now_s - last.now_s <= STALE_S:
            return
        before = self._count.count
        others_s = (self._last.all_s - last.all_s) - (self._last.own_s - last.own_s)
        if self._count.take(self._last.now_s - last.now_s, max(others_s, 0.0)) != before:
            torch.set_num_threads(self._count.count)


def linux_usage() -> Usage | None:
    """Read the clocks of the processors that this process may use; None where the system does not tell."""
    mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    try:
        rows = [line.split() for line in Path("/proc/stat").read_text().splitlines() if line.startswith("cpu")]
        # user, nice, system, idle, iowait, irq, softirq, steal; time that a hypervisor steals belongs to others as well
        ticks = sum(sum(map(int, (*row[1:4], *row[6:9]))) for row in rows if row[0] in mine)
    except (OSError, ValueError):
        return None
    return Usage(time.monotonic(), ticks / os.sysconf("SC_CLK_TCK"), time.process_time()) if ticks else None
